# SPDX-License-Identifier: Apache-2.0
"""That one mail at a time goes through all stages, and that whatever cannot be finished ends as a flush."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

import pytest

from spotwatch.config import Mail
from spotwatch.errors import Malformed
from spotwatch.mail.desk import Keys, MailDesk
from spotwatch.mail.keys import KeyAnswer
from spotwatch.mail.model import Droplet, Judgement
from spotwatch.mail.patterns import default_patterns
from spotwatch.model import Evidence
from spotwatch.testing import EPOCH
from tests.mail.making import ACCOUNT, OURS, SIGNER, delivered, forged, genuine, plain

DROPLETS = (Droplet(droplet_id=OURS),)
NOW = EPOCH
SENT = NOW - timedelta(minutes=5)


class Known(Mapping[str, KeyAnswer]):
    """Keys at hand; a look at them may block or fail, in the thread that proves."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.inside = self.most_inside = 0
        self._lock = threading.Lock()

    async def fetch(self, names: Sequence[str]) -> Mapping[str, KeyAnswer]:
        """Return itself."""
        del names
        return self

    def __getitem__(self, name: str) -> KeyAnswer:
        with self._lock:
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
        self.gate.wait(15)
        with self._lock:
            self.inside -= 1
        if self.error is not None:
            raise self.error
        return SIGNER.answers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(SIGNER.answers)

    def __len__(self) -> int:
        return len(SIGNER.answers)


class Slow(frozenset[str]):
    """Names that take as long to look through as somebody else likes: what a hostile text costs, played."""

    gate: threading.Event
    begun: threading.Event

    def __iter__(self) -> Iterator[str]:
        """Wait for the gate."""
        self.begun.set()
        self.gate.wait(15)
        return super().__iter__()


class Silent:
    """A name server's cache that never comes back."""

    async def fetch(self, names: Sequence[str]) -> Mapping[str, KeyAnswer]:
        """Wait for ever."""
        del names
        await asyncio.get_running_loop().create_future()
        return {}


def desk(keys: Keys, *, limit_seconds: float = 10.0) -> MailDesk:
    """Return a desk for one account."""
    rules = Mail(account_addresses=(ACCOUNT,))
    return MailDesk(rules, default_patterns(), keys, trust_relay=False, limit_seconds=limit_seconds)


async def consider(made: MailDesk, raw: bytes, now: datetime = NOW) -> Judgement:
    """Return the one judgement of a mail."""
    [judgement] = await made.consider(delivered(raw, received_at=now), DROPLETS, now)
    return judgement


async def test_a_genuine_mail_goes_through_all_stages() -> None:
    """It is read, proven, understood and judged strong."""
    judgement = await consider(desk(Known()), genuine(sent_at=SENT))
    assert (judgement.event, judgement.evidence) == ("reclaim", Evidence.STRONG)
    assert not judgement.is_temporary


async def test_what_is_no_mail_is_the_caller_s_to_answer() -> None:
    """There is nothing to judge in it."""
    with pytest.raises(Malformed):
        await consider(desk(Known()), b"\x00" * 100)


async def test_a_stage_that_breaks_ends_as_a_flush_and_is_kept() -> None:
    """The mail must not go unheard, and somebody should look at it."""
    keys = Known()
    keys.error = RecursionError("too deep\x1b[2J")
    judgement = await consider(desk(keys), genuine(sent_at=SENT))
    assert (judgement.event, judgement.evidence, judgement.result) == ("reclaim", Evidence.WEAK, "unproven")
    assert (judgement.is_kept, judgement.is_temporary) == (True, False)
    assert "RecursionError" in judgement.detail
    assert judgement.detail.isprintable()


async def test_a_mail_that_is_too_hard_ends_as_a_flush_and_keeps_its_turn() -> None:
    """Its thread cannot be ended, so the next one waits for it instead of taking another thread."""
    keys = Known()
    keys.gate.clear()
    made = desk(keys, limit_seconds=1.0)
    hard = await consider(made, genuine(sent_at=SENT))
    assert (hard.evidence, hard.is_kept, hard.is_temporary) == (Evidence.WEAK, True, True)
    waits = await consider(made, genuine(sent_at=SENT))
    assert (waits.evidence, waits.is_kept, waits.is_temporary) == (Evidence.WEAK, False, True)
    assert keys.most_inside == 1
    keys.gate.set()
    async with asyncio.timeout(15):
        while (await consider(made, genuine(sent_at=SENT))).is_temporary:  # noqa: ASYNC110 - no event of ours
            await asyncio.sleep(0.01)
    assert (await consider(made, genuine(sent_at=SENT))).evidence is Evidence.STRONG


@pytest.mark.hostile(41)
async def test_dns_that_hangs_is_temporary() -> None:
    """It may be asked again; the flush does not wait for it."""
    judgement = await consider(desk(Silent(), limit_seconds=0.3), genuine(sent_at=SENT))
    assert (judgement.event, judgement.evidence) == ("reclaim", Evidence.WEAK)
    assert judgement.is_temporary


async def test_time_that_others_have_spent_counts() -> None:
    """The whole request has a limit, whatever a service needed for its own proof."""
    made = desk(Silent(), limit_seconds=1000.0)
    async with asyncio.timeout(15):
        [judgement] = await made.consider(
            delivered(genuine(sent_at=SENT), received_at=NOW), DROPLETS, NOW, spent_seconds=999.9
        )
    assert judgement.is_temporary


async def test_many_at_once_are_judged_one_by_one() -> None:
    """However many come, one thread works for them."""
    keys = Known()
    made = desk(keys)
    found = await asyncio.gather(*(consider(made, genuine(sent_at=SENT)) for _ in range(20)))
    assert {one.evidence for one in found} == {Evidence.STRONG}
    assert keys.most_inside == 1


def slow() -> tuple[Droplet, threading.Event]:
    """Return a Droplet with whom the understanding of a mail lasts until the event."""
    names = Slow({"spot-trainer-01"})
    names.gate, names.begun = threading.Event(), threading.Event()
    return Droplet(droplet_id=OURS, names=names), names.gate


# What others may send as often as they like: no signature, one by a stranger's key, a genuine mail of theirs,
# and a genuine one of ours with another text.
_HOSTILE = {
    "unsigned": plain(sent_at=SENT),
    "forged": forged(sent_at=SENT),
    "theirs": genuine(sent_at=SENT, to="somebody@else.example"),
    "changed": genuine(sent_at=SENT).replace(b"Hello", b"Hi"),
    "cut": genuine(sent_at=SENT) + b"x" * 300_000,
}


@pytest.mark.parametrize("kind", _HOSTILE)
async def test_what_is_proven_waits_for_nothing_that_is_not(kind: str) -> None:
    """However many mails that cannot be strong are being read or wait, each genuine one is judged strong."""
    made = desk(Known(), limit_seconds=60.0)
    hard, gate = slow()
    raw = _HOSTILE[kind]
    flood = [
        asyncio.create_task(made.consider(delivered(raw, received_at=NOW), [hard], NOW)) for _ in range(40)
    ]
    try:
        async with asyncio.timeout(15):
            found = [await consider(made, genuine(sent_at=SENT)) for _ in range(12)]
    finally:
        gate.set()
    assert [one.evidence for one in found] == [Evidence.STRONG] * 12
    ends = [one for each in await asyncio.gather(*flood) for one in each]
    assert {(one.evidence, one.is_temporary) for one in ends} == {(Evidence.WEAK, False)}


async def test_a_large_genuine_mail_is_not_kept_waiting_by_many_small_ones() -> None:
    """Before its proof it is as good as any other, and not worse for its size."""
    keys = Known()
    keys.gate.clear()
    made = desk(keys, limit_seconds=60.0)
    ends: list[str] = []

    async def send(name: str, raw: bytes) -> Judgement:
        judgement = await consider(made, raw)
        ends.append(name)
        return judgement

    listed = "".join(f"spot-node-{number:04}\n" for number in range(1500))
    text = f"Your Spot Droplet {OURS} will be reclaimed at 2026-11-29 14:00 UTC.\n\n{listed}"
    forgeries = [forged(sent_at=SENT, message_id=f"<{number}@x.example>") for number in range(40)]
    flood = [asyncio.create_task(send("forged", raw)) for raw in forgeries]
    async with asyncio.timeout(15):
        while not keys.inside:  # noqa: ASYNC110 - no event of ours
            await asyncio.sleep(0.01)
    large = asyncio.create_task(send("large", genuine(sent_at=SENT, text=text)))
    await asyncio.sleep(0)
    keys.gate.set()
    assert (await large).evidence is Evidence.STRONG
    await asyncio.gather(*flood)
    assert ends.index("large") < 20


async def test_what_is_not_proven_is_not_begun_while_a_signature_is_checked() -> None:
    """What can only flush takes no time from what may be the one genuine mail of a flood."""
    keys = Known()
    made = desk(keys, limit_seconds=60.0)
    first, second = Slow({"spot-trainer-01"}), Slow({"spot-trainer-01"})
    for names in (first, second):
        names.gate, names.begun = threading.Event(), threading.Event()
    second.gate.set()
    raw = delivered(plain(sent_at=SENT), received_at=NOW)
    forgeries = []
    async with asyncio.timeout(15):
        for names, is_there in ((first, first.begun.is_set), (second, lambda: bool(made._rest._waiting))):
            droplet = Droplet(droplet_id=OURS, names=names)
            forgeries.append(asyncio.create_task(made.consider(raw, [droplet], NOW)))
            while not is_there():  # noqa: ASYNC110 - no event of ours
                await asyncio.sleep(0.01)
        keys.gate.clear()
        mail = asyncio.create_task(consider(made, genuine(sent_at=SENT)))
        while not keys.inside:  # noqa: ASYNC110 - no event of ours
            await asyncio.sleep(0.01)
        first.gate.set()
        await forgeries[0]
    assert not second.begun.is_set()
    keys.gate.set()
    assert (await mail).evidence is Evidence.STRONG
    await forgeries[1]
    assert second.begun.is_set()


async def test_unproven_mails_that_nobody_can_read_are_one_flush() -> None:
    """Those beyond the queue do not wait, are not asked for again, and count once a minute."""
    made = desk(Known(), limit_seconds=60.0)
    hard, gate = slow()
    raws = [plain(sent_at=SENT, message_id=f"<{number}@x.example>") for number in range(40)]
    flood = [asyncio.create_task(made.consider(delivered(raw, received_at=NOW), [hard], NOW)) for raw in raws]
    try:
        async with asyncio.timeout(15):
            # One is being read, and no more than 12 wait.
            while sum(task.done() for task in flood) < 27:  # noqa: ASYNC110 - no event of ours
                await asyncio.sleep(0.01)
        unread = [one for task in flood if task.done() for one in task.result()]
    finally:
        gate.set()
        await asyncio.gather(*flood)
    assert {(one.event, one.evidence, one.is_temporary, one.is_kept) for one in unread} == {
        ("reclaim", Evidence.WEAK, False, False)
    }
    assert len({one.message_key for one in unread}) == 1


async def test_a_mail_of_which_no_proof_is_known_comes_again() -> None:
    """Where even the looks at headers pile up, nobody knows which of the mails is the genuine one."""
    keys = Known()
    keys.gate.clear()
    made = desk(keys, limit_seconds=60.0)
    flood = [asyncio.create_task(consider(made, genuine(sent_at=SENT))) for _ in range(100)]
    try:
        async with asyncio.timeout(15):
            while not any(task.done() for task in flood):  # noqa: ASYNC110 - no event of ours
                await asyncio.sleep(0.01)
        lost = [task.result() for task in flood if task.done()]
    finally:
        keys.gate.set()
        await asyncio.gather(*flood)
    assert {(one.evidence, one.is_temporary) for one in lost} == {(Evidence.WEAK, True)}
