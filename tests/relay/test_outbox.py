# SPDX-License-Identifier: Apache-2.0
"""Letters on their way: none is lost by an outage, a full disk or a restart, and a flood makes no queue."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from spotwatch.errors import Denied, ProviderError, Unavailable
from spotwatch.mail.mailbox import BROADCAST, Address, Letter
from spotwatch.relay import outbox as module
from spotwatch.relay.outbox import FILE, Outbox
from spotwatch.testing import EPOCH, FakeClock, run_virtual
from tests.mail.letters import HOUR, letter
from tests.relay.posting import HERE, PlayedMailbox, outbox_to, problem_of


def test_a_letter_is_on_disk_before_it_is_answered_for(tmp_path: Path) -> None:
    """A relay that dies before it has written one finds it again when it starts."""

    async def main() -> None:
        mailbox = PlayedMailbox()
        assert await outbox_to(mailbox, tmp_path).post([letter()])
        assert mailbox.tries == []
        after = outbox_to(mailbox, tmp_path)
        assert len(after) == 1
        assert await after.send()
        assert [replace(one, letter_id="") for one in mailbox.held[HERE]] == [letter()]
        assert len(outbox_to(mailbox, tmp_path)) == 0

    run_virtual(main())


def test_letters_are_written_at_once(tmp_path: Path) -> None:
    """The loop wakes for each letter, and each is told once it has arrived."""

    async def main() -> None:
        mailbox, written = PlayedMailbox(), list[Letter]()
        outbox = Outbox(mailbox, FakeClock(), state_dir=tmp_path, on_written=written.append)
        running = asyncio.create_task(outbox.run())
        for number in (1, 2):
            await asyncio.sleep(100)
            await outbox.post([letter(to=Address(number))])
            await asyncio.sleep(0.01)
            assert len(mailbox.held) == number
        running.cancel()
        assert [one.to for one in written] == [Address(1), Address(2)]
        assert mailbox.tries == [100, pytest.approx(200.01)]

    run_virtual(main())


def test_an_outage_is_waited_out(tmp_path: Path) -> None:
    """Tries come quickly at first and then at most every half minute, and none is lost."""

    async def main() -> None:
        mailbox, failed = PlayedMailbox(), list[ProviderError]()
        outbox = Outbox(mailbox, FakeClock(), state_dir=tmp_path, on_failed=failed.append)
        mailbox.errors[None] = Unavailable("503")
        running = asyncio.create_task(outbox.run())
        assert await outbox.post([letter()])
        await asyncio.sleep(1800)
        pauses = [later - earlier for earlier, later in zip(mailbox.tries, mailbox.tries[1:], strict=False)]
        assert pauses[0] <= 3
        assert max(pauses) <= 31
        assert 58 <= len(pauses) <= 70
        assert len(failed) == len(mailbox.tries)
        assert outbox.problem is mailbox.errors.pop(None)
        await asyncio.sleep(32)
        assert HERE in mailbox.held
        assert len(outbox) == 0
        assert problem_of(outbox) is None
        running.cancel()

    run_virtual(main())


def test_a_flood_during_an_outage_makes_no_queue(tmp_path: Path) -> None:
    """However many come for three addresses, few wait, the strong one among them, and few tries are made."""

    async def main() -> None:
        mailbox = PlayedMailbox()
        outbox = outbox_to(mailbox, tmp_path)
        mailbox.errors[None] = Unavailable("503")
        running = asyncio.create_task(outbox.run())
        await outbox.post([letter()])
        for number in range(50):
            for to in (HERE, Address(7), BROADCAST):
                await outbox.post([letter(to=to, evidence="weak", message=f"m{number}")])
            await asyncio.sleep(0.2)
        assert len(outbox) == 4
        assert len(mailbox.tries) <= 3 * 12
        assert (tmp_path / FILE).stat().st_size < 8192
        mailbox.errors.clear()
        await asyncio.sleep(35)
        assert {str(one.evidence) for one in mailbox.held[HERE]} == {"strong", "weak"}
        running.cancel()

    run_virtual(main())


def test_strong_letters_go_first(tmp_path: Path) -> None:
    """A flood of weak ones that waits already does not hold one up."""

    async def main() -> None:
        mailbox = PlayedMailbox()
        outbox = outbox_to(mailbox, tmp_path)
        await outbox.post([letter(to=Address(number), evidence="weak") for number in range(1, 50)])
        await outbox.post([letter()])
        await outbox.send()
        assert mailbox.order[0] == HERE
        assert len(mailbox.order) == 50

    run_virtual(main())


def test_a_strong_letter_goes_before_the_rest_of_a_pass(tmp_path: Path) -> None:
    """Four hundred weak ones are under way at 40 ms each when it comes: it is the next."""

    async def main() -> None:
        mailbox = PlayedMailbox()
        mailbox.seconds = 0.04
        outbox = outbox_to(mailbox, tmp_path)
        running = asyncio.create_task(outbox.run())
        await outbox.post([letter(to=Address(number), evidence="weak") for number in range(1, 400)])
        await asyncio.sleep(1)
        began = len(mailbox.order)
        await outbox.post([letter()])
        await asyncio.sleep(0.1)
        assert HERE in mailbox.order[began : began + 2]
        await asyncio.sleep(20)
        assert len(mailbox.order) == 400
        running.cancel()

    run_virtual(main())


def test_weak_letters_to_one_address_do_not_hold_up_another(tmp_path: Path) -> None:
    """However fast forged mails about a Droplet come that has a strong letter, the next one gets its own."""

    async def main() -> None:
        mailbox = PlayedMailbox()
        mailbox.seconds = 0.04
        mailbox.errors[Address(1)] = Denied("403")
        outbox = outbox_to(mailbox, tmp_path)
        await outbox.post([letter(to=to) for to in (Address(1), Address(2))])
        running = asyncio.create_task(outbox.run())
        for number in range(20):
            for to in (Address(1), Address(2)):
                await outbox.post([letter(to=to, evidence="weak", message=f"m{number}")])
            if number == 10:
                await outbox.post([letter()])
            await asyncio.sleep(0.01)
        assert mailbox.order[:2] == [Address(2), HERE]
        running.cancel()

    run_virtual(main())


def test_one_address_that_is_refused_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """What is denied is tried again later; the rest arrives."""

    async def main() -> None:
        mailbox = PlayedMailbox()
        mailbox.errors[Address(1)] = Denied("403")
        outbox = outbox_to(mailbox, tmp_path)
        await outbox.post([letter(to=Address(number)) for number in (1, 2, 3)])
        assert await outbox.send()
        assert set(mailbox.held) == {Address(2), Address(3)}
        assert isinstance(outbox.problem, Denied)
        assert len(outbox) == 1

    run_virtual(main())


def test_addresses_without_an_answer_do_not_hold_up_the_others(tmp_path: Path) -> None:
    """However many objects hang, and however old their letters are, every other letter arrives."""

    async def main() -> None:
        mailbox = PlayedMailbox()
        for number in range(1, 8):
            mailbox.errors[Address(number)] = Unavailable("no answer within 15 s")
        outbox = outbox_to(mailbox, tmp_path)
        await outbox.post([letter(to=Address(number)) for number in range(1, 10)])
        running = asyncio.create_task(outbox.run())
        await asyncio.sleep(120)
        running.cancel()
        assert set(mailbox.held) == {Address(8), Address(9)}
        assert len(outbox) == 7

    run_virtual(main())


def test_a_mailbox_that_is_away_is_not_asked_for_each_letter(tmp_path: Path) -> None:
    """Three without an answer are enough for one pass."""

    async def main() -> None:
        mailbox = PlayedMailbox()
        mailbox.errors[None] = Unavailable("connection refused")
        outbox = outbox_to(mailbox, tmp_path)
        await outbox.post([letter(to=Address(number)) for number in range(1, 100)])
        assert not await outbox.send()
        assert len(mailbox.tries) == 3

    run_virtual(main())


def test_what_nobody_foresaw_holds_up_one_address_only(tmp_path: Path) -> None:
    """It is a problem like any other, and the rest arrives."""

    async def main() -> None:
        mailbox = PlayedMailbox()
        mailbox.errors[Address(1)] = ZeroDivisionError("of the writer")  # type: ignore[assignment]  # not foreseen
        outbox = outbox_to(mailbox, tmp_path)
        await outbox.post([letter(to=Address(number)) for number in (1, 2)])
        assert await outbox.send()
        assert set(mailbox.held) == {Address(2)}
        assert str(outbox.problem) == "ZeroDivisionError: of the writer"

    run_virtual(main())


def test_a_letter_that_comes_while_an_older_one_is_written_is_written_too(tmp_path: Path) -> None:
    """A cancel that overtakes nothing and is not taken for the reclaim under way."""

    async def main() -> None:
        mailbox = PlayedMailbox()
        outbox = outbox_to(mailbox, tmp_path)
        original = mailbox.put

        async def slow(to: Address, letters: tuple[Letter, ...], *, now: datetime) -> None:
            await asyncio.sleep(1)
            await original(to, letters, now=now)

        mailbox.put = slow  # type: ignore[method-assign]  # the same, slower
        running = asyncio.create_task(outbox.run())
        await outbox.post([letter()])
        await asyncio.sleep(0.5)
        await outbox.post([letter("cancel", issued_at=EPOCH + HOUR / 60, message="m2")])
        await asyncio.sleep(10)
        running.cancel()
        assert [one.event for one in mailbox.held[HERE]] == ["reclaim", "cancel"]
        assert len(outbox) == 0

    run_virtual(main())


def test_without_a_disk_a_letter_must_be_in_the_mailbox() -> None:
    """It is answered for when it is there, and not while the mailbox is away; then it is still tried."""

    async def main() -> None:
        mailbox = PlayedMailbox()
        outbox = outbox_to(mailbox, None)
        assert await outbox.post([letter()])
        assert HERE in mailbox.held
        mailbox.errors[None] = Unavailable("503")
        assert not await outbox.post([letter(to=Address(7))])
        mailbox.errors.clear()
        await outbox.send()
        assert Address(7) in mailbox.held

    run_virtual(main())


def test_a_mailbox_that_hangs_does_not_hold_up_the_answer() -> None:
    """Whoever brought the letter is asked to come again within seconds."""

    async def main() -> None:
        mailbox = PlayedMailbox()
        mailbox.hangs = True
        began = asyncio.get_running_loop().time()
        assert not await outbox_to(mailbox, None).post([letter()])
        assert asyncio.get_running_loop().time() - began <= 4

    run_virtual(main())


def test_a_disk_that_refuses_is_said_and_made_up_for(tmp_path: Path) -> None:
    """The letter goes to the mailbox directly; once the disk is back nothing is amiss."""

    async def main() -> None:
        mailbox, folder = PlayedMailbox(), tmp_path / "gone"
        outbox = outbox_to(mailbox, folder)
        assert await outbox.post([letter()])
        assert HERE in mailbox.held
        assert "cannot be kept" in outbox.disk_problem
        folder.mkdir()
        assert await outbox.post([letter(to=Address(7))])
        assert outbox.disk_problem == ""

    run_virtual(main())


def test_more_addresses_than_can_wait_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory and file stay bounded, and those who wait already may still be told more."""
    monkeypatch.setattr(module, "MAX_ADDRESSES", 3)

    async def main() -> None:
        outbox = outbox_to(PlayedMailbox(), tmp_path)
        assert await outbox.post([letter(to=Address(number)) for number in (1, 2, 3)])
        assert not await outbox.post([letter(to=Address(4))])
        assert await outbox.post([letter("cancel", to=Address(3), issued_at=EPOCH + HOUR, message="m2")])
        assert len(outbox) == 4

    run_virtual(main())


def test_a_full_outbox_is_sent_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a mail about more Droplets than there is room for, some are told at each try, until all are."""
    monkeypatch.setattr(module, "MAX_ADDRESSES", 3)

    async def main() -> None:
        mailbox = PlayedMailbox()
        letters = [letter(to=Address(number)) for number in range(1, 5)]
        assert not await outbox_to(mailbox, tmp_path).post(letters)
        outbox = outbox_to(mailbox, tmp_path)
        assert len(outbox) == 3
        running = asyncio.create_task(outbox.run())
        await asyncio.sleep(1)
        assert len(mailbox.held) == 3
        assert await outbox.post(letters[3:])
        assert not await outbox.post(letters)
        await asyncio.sleep(1)
        assert len(mailbox.held) == 4
        running.cancel()

    run_virtual(main())


def test_weak_letters_leave_room_for_strong_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood about many Droplets while the bucket is away does not keep a proven mail out."""
    monkeypatch.setattr(module, "MAX_ADDRESSES", 12)

    async def main() -> None:
        outbox = outbox_to(PlayedMailbox(), tmp_path)
        weak = [letter(to=Address(number), evidence="weak") for number in range(1, 9)]
        assert not await outbox.post(weak)
        assert len(outbox) == 3
        assert await outbox.post([letter(), letter(to=Address(1))])

    run_virtual(main())
