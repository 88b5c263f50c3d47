# SPDX-License-Identifier: Apache-2.0
"""One Droplet's poll of the mailbox: each letter once, and what is wrong becomes a problem that is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from spotwatch.errors import ConfigError, Malformed
from spotwatch.mail.mailbox import BROADCAST, HEARTBEAT_KEY, Address, Letter, address_of_name
from spotwatch.mail.mailbox_form import write_letters
from spotwatch.model import Evidence
from spotwatch.providers._do_mailbox import DropletMailbox, Whose, open_mailbox
from spotwatch.testing import EPOCH, FakeClock, run_virtual
from tests.mail.letters import HOUR, KEY, OURS, STRANGER, letter
from tests.mail.seat import Seat

_OURS = Address(OURS)


def test_each_letter_is_handed_on_once() -> None:
    """Ours, one to our name and one to everybody come once, and again only after a restart."""

    async def main() -> None:
        seat = Seat()
        assert await seat.mailbox.poll() == ()
        assert seat.mailbox.problem is None
        seat.put(letter())
        seat.put(letter(to=address_of_name("SPOT-1"), evidence="weak"))
        seat.put(letter(to=BROADCAST, evidence="weak"))
        seat.put(letter(to=Address(OURS + 1)))
        found = await seat.mailbox.poll()
        assert {one.to: str(one.evidence) for one in found} == {
            _OURS: "strong",
            address_of_name("spot-1"): "weak",
            BROADCAST: "weak",
        }
        assert await seat.mailbox.poll() == ()
        assert len(await seat.opened().poll()) == 3

    run_virtual(main())


@pytest.mark.hostile(69)
def test_an_etag_that_flaps_brings_no_letter_twice() -> None:
    """A store that gives the same object another ETag each time makes work, and no news."""

    async def main() -> None:
        seat = Seat()
        seat.objects.flaps = True
        seat.put(letter())
        assert len(await seat.mailbox.poll()) == 1
        assert [await seat.mailbox.poll() for _ in range(5)] == [()] * 5

    run_virtual(main())


def test_an_unchanged_object_is_asked_for_by_its_etag() -> None:
    """After the first reading each poll names what it has; the sign of life is asked for once a minute."""

    async def main() -> None:
        seat = Seat()
        seat.put(letter())
        for _ in range(4):
            await seat.mailbox.poll()
            await seat.clock.sleep(20)
        first, *later = seat.objects.asked
        assert first[_OURS.key] == ""
        assert all(asked[_OURS.key] for asked in later)
        assert [HEARTBEAT_KEY in asked for asked in seat.objects.asked] == [True, False, False, True]
        assert [next(iter(first)), list(first)[-1]] == [_OURS.key, HEARTBEAT_KEY]

    run_virtual(main())


@pytest.mark.hostile(70)
def test_another_droplet_on_a_copied_disk_begins_anew() -> None:
    """When the machine turns out to be another Droplet, that one's letters are read, all of them."""

    async def main() -> None:
        seat = Seat()
        seat.put(letter())
        seat.put(letter(to=Address(7)))
        assert [one.to for one in await seat.mailbox.poll()] == [_OURS]
        seat.whose = Whose(droplet_id=7)
        assert [one.to for one in await seat.mailbox.poll()] == [Address(7)]

    run_virtual(main())


def test_before_we_know_who_we_are_we_hear_what_is_for_everybody() -> None:
    """A broadcast needs no identity; once there is one, all that concerns us is told, that once more."""

    async def main() -> None:
        seat = Seat(whose=None)
        seat.put(letter())
        seat.put(letter(to=BROADCAST, evidence="weak", message="m2"))
        assert [one.to for one in await seat.mailbox.poll()] == [BROADCAST]
        seat.whose = Whose(droplet_id=OURS)
        assert {one.to for one in await seat.mailbox.poll()} == {_OURS, BROADCAST}

    run_virtual(main())


@pytest.mark.hostile(69)
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"x" * 10_000_000,
        b"{",
        b"{}",
        write_letters([letter()], STRANGER, now=EPOCH),
        write_letters([letter(to=Address(OURS + 1))], KEY, now=EPOCH),
    ],
)
def test_a_bad_object_is_a_problem_until_it_is_mended(raw: bytes) -> None:
    """It hides nobody else's letters, is asked for again each time, and the good one that follows is read."""

    async def main() -> None:
        seat = Seat()
        seat.objects.objects[_OURS.key] = raw
        seat.put(letter(to=BROADCAST, evidence="weak"))
        assert [one.to for one in await seat.mailbox.poll()] == [BROADCAST]
        assert isinstance(seat.mailbox.problem, Malformed)
        assert await seat.mailbox.poll() == ()
        assert isinstance(seat.mailbox.problem, Malformed)
        seat.put(letter())
        assert [one.to for one in await seat.mailbox.poll()] == [_OURS]
        assert seat.mailbox.problem is None

    run_virtual(main())


@pytest.mark.hostile(69)
def test_a_later_version_is_weak_and_an_expired_letter_is_nothing() -> None:
    """Both are read without a problem: one may cost a save, the other nothing."""

    async def main() -> None:
        seat = Seat()
        seat.put(letter(issued_at=EPOCH - 9 * HOUR))
        assert await seat.mailbox.poll() == ()
        assert seat.mailbox.problem is None

    run_virtual(main())


def test_a_letter_arrives_within_one_interval() -> None:
    """However long the daemon has been polling, what is written is handed on 20 s later at the latest."""

    async def main() -> None:
        seat = Seat()
        arrived: list[tuple[float, Letter]] = []

        async def deliver(letters: Sequence[Letter]) -> None:
            arrived.extend((asyncio.get_running_loop().time(), one) for one in letters)

        polling = asyncio.create_task(seat.mailbox.run(deliver))
        await asyncio.sleep(1001)
        seat.put(letter(issued_at=EPOCH + HOUR / 4))
        await asyncio.sleep(21)
        polling.cancel()
        ((at, one),) = arrived
        assert 1001 <= at <= 1021
        assert one.evidence is Evidence.STRONG

    run_virtual(main())


def test_the_first_letters_count_as_read_once_somebody_has_them() -> None:
    """In between, an answer of no notices would say that there are none, and end a stop from before."""

    async def main() -> None:
        seat = Seat()
        seat.put(letter(issued_at=EPOCH))
        are_handed_on, are_taken = asyncio.Event(), asyncio.Event()

        async def deliver(letters: Sequence[Letter]) -> None:
            assert len(letters) == 1
            are_handed_on.set()
            await are_taken.wait()

        polling = asyncio.create_task(seat.mailbox.run(deliver))
        await are_handed_on.wait()
        assert "not been read yet" in str(seat.mailbox.problem)
        are_taken.set()
        await asyncio.sleep(1)
        assert seat.mailbox.problem is None
        polling.cancel()

    run_virtual(main())


def _open(tmp_path: Path, **options: str) -> DropletMailbox:
    return open_mailbox(
        options.pop("url", tmp_path.as_uri()),
        [KEY.public.text],
        FakeClock(),
        whose=lambda: Whose(droplet_id=OURS),
        environ={},
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.hostile(17)
@pytest.mark.parametrize("hours", [-1.0, -0.25, 4.0, 9.0])
def test_a_clock_that_was_wrong_loses_no_letter(hours: float) -> None:
    """What was early, late or expired by a clock that is set afterwards is read and judged again."""

    async def main() -> None:
        seat = Seat()
        seat.clock.wall_offset_seconds = 3600 * hours
        await seat.mailbox.poll()
        seat.put(letter())
        await seat.clock.sleep(20)
        await seat.mailbox.poll()
        seat.clock.wall_offset_seconds = 0.0
        await seat.clock.sleep(20)
        (found,) = await seat.mailbox.poll()
        assert str(found.evidence) == "strong"
        await seat.clock.sleep(20)
        assert await seat.mailbox.poll() == ()

    run_virtual(main())


@pytest.mark.hostile(17)
def test_a_letter_out_of_the_future_grows_strong_when_its_time_has_come() -> None:
    """Our clock is right, the relay's was ahead: nothing of the letter changes but what it is worth."""

    async def main() -> None:
        seat = Seat()
        seat.clock.wall_offset_seconds = -610
        seat.put(letter())
        (found,) = await seat.mailbox.poll()
        assert str(found.evidence) == "weak"
        await seat.clock.sleep(20)
        (found,) = await seat.mailbox.poll()
        assert str(found.evidence) == "strong"

    run_virtual(main())


def test_a_mailbox_opens_from_settings(tmp_path: Path) -> None:
    """Address and keys as a configuration holds them are enough for a directory."""
    (tmp_path / "reclaims").mkdir()
    (tmp_path / _OURS.key).write_bytes(write_letters([letter()], KEY, now=EPOCH))

    async def main() -> None:
        mailbox = _open(tmp_path)
        assert [one.to for one in await mailbox.poll()] == [_OURS]
        await mailbox.close()

    run_virtual(main())


def test_a_mailbox_without_keys_is_refused(tmp_path: Path) -> None:
    """Whoever could write there could stop the trainer."""
    with pytest.raises(ConfigError, match="whpk_"):
        open_mailbox(tmp_path.as_uri(), [], FakeClock(), whose=lambda: None, environ={})


def test_credentials_come_from_a_file_of_their_own(tmp_path: Path) -> None:
    """The mailbox's key stands beside the trainer's; a file that others may read is refused."""
    file = tmp_path / "mailbox.env"
    file.write_text("# the relay's bucket\nexport SPACES_KEY=k\nSPACES_SECRET='s'\nSPACES_REGION=nyc3\n")
    with pytest.raises(ConfigError, match="chmod 600"):
        _open(tmp_path, url="spaces://mail", credentials_file=str(file))
    file.chmod(0o600)
    _open(tmp_path, url="spaces://mail", credentials_file=str(file))
    file.write_text("SPACES_KEY=k\nmy-secret\n")
    with pytest.raises(ConfigError, match="NAME=VALUE") as caught:
        _open(tmp_path, url="spaces://mail", credentials_file=str(file))
    assert "my-secret" not in str(caught.value)
