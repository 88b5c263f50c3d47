# SPDX-License-Identifier: Apache-2.0
"""Mail and notices posted to the relay: what letters they make, what they are answered, and what counts once.

Services, DKIM, DNS and the desk are the real ones, keys come from a name server on loopback.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spotwatch.errors import ProviderError, Unavailable
from spotwatch.mail.mailbox import BROADCAST, Address, address_of_name
from spotwatch.mail.mailbox_form import read_letters
from spotwatch.mail.model import Droplet
from spotwatch.received import Received, Verdict
from tests.mail import name_server
from tests.mail.letters import KEY
from tests.mail.making import OURS, SIGNER, forged, genuine, plain, zone
from tests.relay.post import FLEET, OTHER, Post

ACCEPTED = Verdict(status=202, result="accepted")
UNPROVEN = Verdict(status=202, result="unproven")
DUPLICATE = Verdict(status=200, result="duplicate")


@pytest.fixture
async def post(tmp_path: Path) -> AsyncIterator[Post]:
    """Give a relay that has started, with a name server that publishes the signer's key."""
    async with name_server.serving(zone(SIGNER.records)) as server:
        made = Post(tmp_path, server)
        made.start()
        yield made


_OURS, _OTHERS = Address(OURS).key, Address(OTHER).key
_STRONG = ["reclaim strong"]


async def test_a_genuine_mail_is_told_to_whom_it_names(post: Post) -> None:
    """One Droplet of the fleet gets a strong letter with the mail's time, and no other one anything."""
    sent = post.ago(minutes=5)
    assert await post.mail(genuine(sent_at=sent)) == ACCEPTED
    assert await post.letters() == {_OURS: _STRONG}
    raw = post.objects.objects[_OURS]
    (letter,) = read_letters(raw, [KEY.public], to=Address(OURS), now=post.clock.now()).letters
    assert letter.at == sent.replace(second=0) + timedelta(hours=2)
    assert letter.issued_at == sent
    assert post.counted == {("mailgun", "accepted"): 1}


async def test_a_mail_about_two_droplets_is_told_to_both(post: Post) -> None:
    """Each gets a letter of its own: strong by a name, weak by an address."""
    raw = genuine(
        sent_at=post.ago(minutes=5),
        text="Your Spot Droplets will be reclaimed.\r\n\r\nspot-trainer-01\r\n203.0.113.7\r\n",
    )
    assert (await post.mail(raw)).status == 202
    assert await post.letters() == {_OURS: _STRONG, _OTHERS: ["reclaim weak"]}


@pytest.mark.parametrize("make", [plain, forged])
async def test_a_mail_without_proof_may_only_flush(post: Post, make: Any) -> None:
    """Whoever wrote it: the Droplet that it names may save, and is not stopped."""
    assert await post.mail(make(sent_at=post.ago(minutes=5))) == UNPROVEN
    assert await post.letters() == {_OURS: ["reclaim weak"]}


async def test_forged_mails_do_not_touch_what_is_proven(post: Post) -> None:
    """Reclaims and cancels by a forger, before and after the genuine mail, leave its letter as it is."""
    for number in range(5):
        for event in ("reclaim", "cancel"):
            await post.mail(forged(sent_at=post.ago(minutes=5), event=event, message_id=f"<f{number}@x.org>"))
        if number == 2:
            assert await post.mail(genuine(sent_at=post.ago(minutes=5))) == ACCEPTED
    assert "reclaim strong" in (await post.letters())[_OURS]
    assert "cancel strong" not in (await post.letters())[_OURS]
    assert len((await post.letters())[_OURS]) == 2


async def test_a_genuine_cancel_takes_the_reclaim_back(post: Post) -> None:
    """Both are told, each with its date; the same reclaim once more changes nothing."""
    first = genuine(sent_at=post.ago(minutes=9))
    await post.mail(first)
    cancel = genuine(sent_at=post.ago(minutes=5), event="cancel", message_id="<two@digitalocean.com>")
    assert await post.mail(cancel) == ACCEPTED
    assert await post.letters() == {_OURS: [*_STRONG, "cancel strong"]}
    assert (await post.mail(first)).status == 202
    assert await post.letters() == {_OURS: [*_STRONG, "cancel strong"]}


async def test_a_mail_that_names_nobody_is_for_everybody(post: Post) -> None:
    """Proven or not, it may only flush; in an account with one Droplet it is about that one."""
    raw = genuine(sent_at=post.ago(minutes=5), text="Your Spot Droplet will be reclaimed in 2 hours.")
    assert (await post.mail(raw)).status == 202
    assert await post.letters() == {BROADCAST.key: ["reclaim weak"]}


async def test_the_only_droplet_of_an_account_needs_no_name(post: Post) -> None:
    """Where the configuration says so, and the fleet agrees."""
    post.rules = {"single_droplet_account": True}
    post.configured = FLEET[:1]
    post.start()
    raw = genuine(sent_at=post.ago(minutes=5), text="Your Spot Droplet will be reclaimed in 2 hours.")
    assert await post.mail(raw) == ACCEPTED
    assert await post.letters() == {_OURS: _STRONG}


async def test_a_mail_about_droplets_of_others_tells_nobody(post: Post) -> None:
    """It is answered with 2xx, so that it does not come again."""
    text = (
        "Your Spot Droplets will be reclaimed.\r\n\r\nAffected Droplets:\r\n\r\nanother-01\r\nanother-02\r\n"
    )
    raw = genuine(sent_at=post.ago(minutes=5), text=text)
    assert await post.mail(raw) == Verdict(status=200, result="not_mine")
    assert await post.letters() == {}


async def test_while_the_fleet_is_unknown_everybody_may_save(post: Post) -> None:
    """An API that has never answered: a mail about somebody is asked for again, and judged anew then."""
    answers: list[ProviderError | tuple[Droplet, ...]] = [Unavailable("500")]

    async def ask() -> tuple[Droplet, ...]:
        answer = answers[-1]
        if isinstance(answer, ProviderError):
            raise answer
        return answer

    post.ask, post.configured = ask, ()
    post.start()
    await post.fleet.refresh()
    raw = genuine(sent_at=post.ago(minutes=5))
    assert await post.mail(raw, token="t" * 50) == Verdict(status=503, result="pending")
    assert await post.letters() == {BROADCAST.key: ["reclaim weak"]}
    answers.append((Droplet(droplet_id=OURS, names=frozenset({"spot-trainer-01"})),))
    await post.fleet.refresh()
    assert await post.mail(raw, token="t" * 50) == ACCEPTED
    assert (await post.letters())[_OURS] == _STRONG


async def test_an_invoice_tells_nobody(post: Post) -> None:
    """DigitalOcean's other mail is answered with 2xx and makes no letter."""
    raw = genuine(sent_at=post.ago(minutes=5), subject="Your invoice", text="Your November invoice is $12.")
    assert await post.mail(raw) == Verdict(status=200, result="ignored")
    assert await post.letters() == {}


async def test_dns_that_is_down_flushes_and_asks_for_the_mail_again(post: Post) -> None:
    """Weak now, 503, and strong when the same request comes once more and DNS answers."""
    records = dict[str, str]()
    down = zone(records)

    def silent(question: Any) -> bytes | None:
        return down(question) if records else None

    async with name_server.serving(silent) as server:
        post.rules = {"resolvers": (server.address,)}
        post.start()
        raw = genuine(sent_at=post.ago(minutes=5))
        assert (await post.mail(raw, token="t" * 50)).status == 503
        assert await post.letters() == {_OURS: ["reclaim weak"]}
        records.update(SIGNER.records)
        post.start()
        assert await post.mail(raw, token="t" * 50) == ACCEPTED
        assert "reclaim strong" in (await post.letters())[_OURS]


async def test_an_unproven_cancel_tells_nobody_and_comes_again_when_dns_was_down(post: Post) -> None:
    """A forged one leaves the weak letter where it is, until every Droplet has read it."""
    assert (await post.mail(plain(sent_at=post.ago(minutes=5), message_id="<a@x>"))).status == 202
    before = await post.letters()
    cancel = plain(event="cancel", sent_at=post.ago(minutes=1), message_id="<b@x>")
    assert await post.mail(cancel) == Verdict(status=200, result="unproven")
    signed = genuine(event="cancel", sent_at=post.ago(minutes=1), message_id="<c@x>")
    post.rules = {"resolvers": ("127.0.0.1:1",)}
    post.start()
    assert (await post.mail(signed)).status == 503
    assert await post.letters() == before


@pytest.mark.hostile(12, 13, 14)
async def test_a_request_counts_once_also_after_a_restart(post: Post) -> None:
    """The same is a duplicate, and its signature is good for no other mail."""
    raw = genuine(sent_at=post.ago(minutes=5))
    assert await post.mail(raw, token="t" * 50) == ACCEPTED
    post.start()
    assert await post.mail(raw, token="t" * 50) == DUPLICATE
    assert (await post.mail(plain(sent_at=post.ago(minutes=1)), token="t" * 50)).status == 406
    assert await post.letters() == {_OURS: _STRONG}


async def test_what_is_not_authentic_is_401_and_makes_no_letter(post: Post) -> None:
    """The services' and the notices' signatures are asked for before anything else."""
    verdict = await post.mail(genuine(sent_at=post.ago(minutes=5)), key="other")
    assert (verdict.status, verdict.is_vouched) == (401, False)
    assert (await post.notice({"event": "reclaim", "droplet_id": OURS}, secret=b"x" * 32)).status == 401
    assert (await post.notice({"event": "reclaim", "droplet_id": OURS}, age_seconds=301)).status == 401
    assert await post.letters() == {}


async def test_what_is_no_mail_is_kept_for_inspection(post: Post) -> None:
    """The service is told to give up, in its own code."""
    verdict = await post.mail(b"\x00" * 1000)
    assert verdict == Verdict(status=406, result="malformed")
    assert verdict.is_vouched
    assert len(list((post.state_dir / "malformed").iterdir())) == 1


@pytest.mark.parametrize("path", ["nosuch", "mailgun/other", "relay", "mailgun/mime/x"])
async def test_another_path_is_404(post: Post, path: str) -> None:
    """A service that is not configured does not exist."""
    verdict = await post.receiver.receive(Received(headers={}, body=b"", path=path))
    assert verdict.status == 404
    assert post.counted == {("none", "other"): 1}


@pytest.mark.parametrize(
    ("row", "letters"),
    [
        ({"event": "reclaim", "droplet_id": OURS}, {_OURS: _STRONG}),
        ({"event": "cancel", "name": "SPOT-trainer-02"}, {_OTHERS: ["cancel strong"]}),
        (
            {"event": "reclaim", "name": "spot-trainer-03"},
            {address_of_name("spot-trainer-03").key: ["reclaim weak"]},
        ),
        ({"event": "reclaim"}, {BROADCAST.key: ["reclaim weak"]}),
    ],
)
async def test_a_signed_notice_makes_letters(
    post: Post, row: dict[str, Any], letters: dict[str, list[str]]
) -> None:
    """The same JSON that a Droplet takes, for any of the fleet."""
    assert await post.notice(row) == ACCEPTED
    assert await post.letters() == letters
    assert post.counted == {("json", "accepted"): 1}


async def test_a_notice_counts_once_also_after_a_restart(post: Post) -> None:
    """The same id is a duplicate, and good for no other body."""
    row = {"event": "reclaim", "droplet_id": OURS}
    assert await post.notice(row, webhook_id="msg_a") == ACCEPTED
    post.start()
    assert await post.notice(row, webhook_id="msg_a") == DUPLICATE
    other = {"event": "reclaim", "droplet_id": OTHER}
    assert await post.notice(other, webhook_id="msg_a") == Verdict(status=409, result="replayed")
    assert await post.letters() == {_OURS: _STRONG}


@pytest.mark.hostile(17)
async def test_a_clock_that_is_not_set_makes_a_notice_weak(post: Post) -> None:
    """An hour off is taken while the clock is known to be wrong, may only flush, and is to come again."""
    post.is_clock_synced = False
    row = {"event": "reclaim", "droplet_id": OURS}
    assert await post.notice(row, age_seconds=3600) == Verdict(status=503, result="unproven")
    assert await post.letters() == {_OURS: ["reclaim weak"]}


@pytest.mark.hostile(21)
@pytest.mark.parametrize("body", [b"[" * 20_000, b"NaN", b'{"event": 5}', b'{"event": "explode"}', b"\xff"])
async def test_hostile_json_is_400(post: Post, body: bytes) -> None:
    """Signed, and still not understood."""
    assert (await post.notice(body)).status == 400
    assert await post.letters() == {}


async def test_a_bucket_that_is_away_loses_no_letter(post: Post) -> None:
    """The sender is answered, the relay restarts, the bucket comes back: the letter arrives."""
    post.objects.errors[""] = Unavailable("503")
    assert await post.mail(genuine(sent_at=post.ago(minutes=5))) == ACCEPTED
    assert await post.letters() == {}
    post.start()
    assert await post.letters() == {}
    post.objects.errors.clear()
    assert await post.letters() == {_OURS: _STRONG}


async def test_what_can_be_lost_is_not_answered_for(post: Post, tmp_path: Path) -> None:
    """Neither disk nor bucket takes the letter: the sender is told to come again, and then it counts."""
    gone = tmp_path / "gone"
    post.start(state_dir=gone)
    post.objects.errors[""] = Unavailable("503")
    raw = genuine(sent_at=post.ago(minutes=5))
    assert await post.mail(raw, token="t" * 50) == Verdict(status=503, result="full")
    post.objects.errors.clear()
    gone.mkdir()
    assert await post.mail(raw, token="t" * 50) == ACCEPTED
    assert await post.letters() == {_OURS: _STRONG}


async def test_a_notice_for_which_no_memory_is_left_is_told_all_the_same(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its letter goes out at each try, and is the same; it is asked for again until it can be remembered."""
    row = {"event": "reclaim", "droplet_id": OURS}
    monkeypatch.setattr(post.receiver._replays.proven, "_capacity", 0)
    for _ in range(2):
        assert await post.notice(row, webhook_id="msg_a") == Verdict(status=503, result="full")
        assert await post.letters() == {_OURS: _STRONG}
    monkeypatch.undo()
    assert await post.notice(row, webhook_id="msg_a") == ACCEPTED


async def test_a_notice_that_may_be_a_replay_flushes(post: Post) -> None:
    """A restart has lost the memory: it is told weakly, and asked for again, until it is newer than that."""
    row = {"event": "reclaim", "droplet_id": OURS}
    await post.notice(row)
    await post.letters()
    (post.state_dir / "relay-replays.json").write_bytes(b"{")
    post.objects.objects.clear()
    post.start()
    assert await post.notice(row, age_seconds=60) == Verdict(status=503, result="replayed")
    assert await post.letters() == {_OURS: ["reclaim weak"]}
