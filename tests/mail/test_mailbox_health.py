# SPDX-License-Identifier: Apache-2.0
"""Whether a notice would arrive: what is wrong with a mailbox or its relay is a problem that is told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from spotwatch.errors import Denied, Malformed, ProviderError, Unavailable
from spotwatch.mail.mailbox import HEARTBEAT_KEY, Address, Heartbeat, Letter
from spotwatch.mail.mailbox_client import Fetched
from spotwatch.mail.mailbox_form import write_heartbeat
from spotwatch.testing import EPOCH, run_virtual
from tests.mail.letters import OURS, STRANGER, letter
from tests.mail.seat import Seat

_OURS = Address(OURS)


@pytest.mark.hostile(67, 69)
@pytest.mark.parametrize("error", [Denied("403"), Unavailable("503 SlowDown"), Malformed("redirect")])
def test_a_mailbox_that_refuses_everything_is_a_problem(error: Denied | Unavailable | Malformed) -> None:
    """The reason is told, nothing is raised, and letters are read when it answers again."""

    async def main() -> None:
        seat = Seat()
        seat.objects.errors[""] = error
        for _ in range(3):
            assert await seat.mailbox.poll() == ()
            problem = seat.mailbox.problem
            assert (type(problem), str(problem)) == (type(error), str(error))
            assert problem is not None
            assert problem.mend
        seat.objects.errors.clear()
        seat.put(letter())
        assert len(await seat.mailbox.poll()) == 1
        assert seat.mailbox.problem is None

    run_virtual(main())


def test_what_is_denied_beside_a_readable_sign_of_life_is_not_there() -> None:
    """A key that may read but not list is told 403 of every letter that does not exist."""

    async def main() -> None:
        seat = Seat()
        seat.objects.errors[_OURS.key] = Denied("403")
        assert await seat.mailbox.poll() == ()
        assert seat.mailbox.problem is None
        del seat.objects.errors[_OURS.key]
        seat.put(letter())
        assert len(await seat.mailbox.poll()) == 1

    run_virtual(main())


def test_a_key_that_was_taken_away_is_a_problem_within_a_minute() -> None:
    """Once the sign of life is refused as well, the credentials are what is wrong."""

    async def main() -> None:
        seat = Seat()
        await seat.mailbox.poll()
        seat.objects.errors[""] = Denied("403")
        for _ in range(3):
            await seat.clock.sleep(20)
            await seat.mailbox.poll()
        assert isinstance(seat.mailbox.problem, Denied)

    run_virtual(main())


def test_a_silent_relay_is_a_problem() -> None:
    """Its age is a measure from the first, and after ten minutes a reason to look."""

    async def main() -> None:
        seat = Seat()
        assert seat.mailbox.heartbeat_age_seconds is None
        assert "not been read yet" in str(seat.mailbox.problem)
        await seat.mailbox.poll()
        await seat.clock.sleep(300)
        assert _age(seat) == 300
        await seat.mailbox.poll()
        assert _problem(seat) is None
        await seat.clock.sleep(301)
        await seat.mailbox.poll()
        assert "silent for 601 s" in str(_problem(seat))
        seat.beat(minutes=10)
        await seat.clock.sleep(60)
        await seat.mailbox.poll()
        assert _problem(seat) is None

    run_virtual(main())


def _problem(seat: Seat) -> ProviderError | None:
    """Return the problem anew: a type checker takes a property for a constant."""
    return seat.mailbox.problem


def _age(seat: Seat) -> float | None:
    """Return the age anew, likewise."""
    return seat.mailbox.heartbeat_age_seconds


def test_a_sign_of_life_from_the_future_does_not_last_for_ever() -> None:
    """It is a problem as it stands, and its age counts from when it came, whatever date it bears."""

    async def main() -> None:
        seat = Seat()
        seat.beat(minutes=60 * 24 * 365)
        await seat.mailbox.poll()
        assert "in the future" in str(_problem(seat))
        await seat.clock.sleep(3600)
        await seat.mailbox.poll()
        assert _age(seat) == 3600
        # So far behind that it hides the silence; by the clock that nobody sets it is plain.
        seat.beat(minutes=60 + 5)
        await seat.clock.sleep(60)
        await seat.mailbox.poll()
        assert _problem(seat) is None
        await seat.clock.sleep(601)
        await seat.mailbox.poll()
        assert "silent for" in str(_problem(seat))

    run_virtual(main())


def test_no_relay_at_all_is_a_problem() -> None:
    """A mailbox that is empty, or another one than the relay writes to, does not look healthy."""

    async def main() -> None:
        seat = Seat()
        seat.objects.objects.clear()
        await seat.mailbox.poll()
        assert "no sign of life" in str(seat.mailbox.problem)

    run_virtual(main())


def test_a_relay_that_starts_later_is_seen_at_the_next_poll() -> None:
    """Until a sign of life was read once, each poll asks for it."""

    async def main() -> None:
        seat = Seat()
        seat.objects.objects.clear()
        for _ in range(2):
            await seat.mailbox.poll()
            assert "no sign of life" in str(_problem(seat))
            await seat.clock.sleep(20)
        seat.beat(minutes=0)
        await seat.mailbox.poll()
        assert _problem(seat) is None

    run_virtual(main())


def test_a_forged_sign_of_life_is_none() -> None:
    """Only the relay's key can say that the relay lives."""

    async def main() -> None:
        seat = Seat()
        beat = Heartbeat(at=EPOCH, interval_seconds=60.0)
        seat.objects.objects[HEARTBEAT_KEY] = write_heartbeat(beat, STRANGER)
        await seat.mailbox.poll()
        assert seat.mailbox.heartbeat_age_seconds is None
        assert isinstance(seat.mailbox.problem, Malformed)

    run_virtual(main())


def test_polls_keep_their_pace() -> None:
    """Twenty seconds at most, jitter only shortens it, and a mailbox that is away at most doubles it."""

    async def main() -> None:
        seat = Seat()
        assert seat.mailbox.pause_seconds() == 20
        seat.chance = 1.0
        assert seat.mailbox.pause_seconds() == 15
        seat.chance = 0.0
        seat.objects.errors[""] = Unavailable("gone")
        for _ in range(10):
            await seat.mailbox.poll()
        assert seat.mailbox.pause_seconds() == 40
        seat.objects.errors[""] = Denied("403")
        await seat.mailbox.poll()
        assert seat.mailbox.pause_seconds() == 20

    run_virtual(main())


def test_what_nobody_foresaw_ends_no_polling() -> None:
    """A reader or a receiver that raises is a problem, and the letter is handed on again afterwards."""

    async def main() -> None:
        seat = Seat()
        seat.put(letter())
        arrived: list[Letter] = []
        faults = [RuntimeError("the disk is on fire"), ZeroDivisionError("of the reader")]
        fetch = seat.objects.fetch

        async def deliver(letters: Sequence[Letter]) -> None:
            if len(faults) == 2:
                raise faults.pop(0)
            arrived.extend(letters)

        async def failing(etags: Mapping[str, str]) -> Mapping[str, Fetched | ProviderError]:
            if len(faults) == 1:
                raise faults.pop()
            return await fetch(etags)

        seat.objects.fetch = failing  # type: ignore[method-assign]  # the same, once worse
        polling = asyncio.create_task(seat.mailbox.run(deliver))
        for says in ("RuntimeError: the disk is on fire", "ZeroDivisionError: of the reader"):
            await asyncio.sleep(19 if says.startswith("R") else 20)
            assert str(_problem(seat)) == says
        await asyncio.sleep(20)
        assert [one.to for one in arrived] == [_OURS]
        assert _problem(seat) is None
        polling.cancel()

    run_virtual(main())
