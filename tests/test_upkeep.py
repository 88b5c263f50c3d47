# SPDX-License-Identifier: Apache-2.0
"""The runtime directory of a daemon that runs: what the trainer's user does there, and that it is mended.

Which folders are refused, and what a lock is worth, is tested with the directory and with the lock.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from spotwatch.config import Settings
from spotwatch.config_check import LOCK
from spotwatch.errors import ConfigError
from spotwatch.rundir import KEPT_ASIDE
from spotwatch.runtime_lock import find_daemon
from spotwatch.testing import EPOCH, FakeClock, run_virtual
from spotwatch.upkeep import KEPT_STATUS_FILES, LOOK_SECONDS, SILENT_SECONDS, TIDY_SECONDS, Upkeep

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to play another user")
_TRAINER = (12345, 12346)


class _Bench:
    """A directory that is kept, and what was said of it."""

    def __init__(self, place: Path, lines: list[str], *, is_dry_run: bool = False) -> None:
        self.run = place / "run"
        self.lines = lines
        self.clock = FakeClock()
        settings = Settings(runtime_dir=self.run, state_dir=place / "state")
        log = structlog.get_logger()
        self.upkeep = Upkeep(settings, self.clock, [], log=log, is_dry_run=is_dry_run)

    def status(self, name: str, age_seconds: float, uid: int | None = None) -> Path:
        """Write a status file that has not changed for so long."""
        path = self.run / "status" / f"{name}.json"
        path.write_text("{}", encoding="utf-8")
        at = EPOCH.timestamp() - age_seconds
        os.utime(path, (at, at))
        if uid is not None:
            os.chown(path, uid, -1)
        return path


Story = Callable[[_Bench], Coroutine[Any, Any, None]]


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Callable[[Story], list[str]]]:
    """Return a function that plays a story beside a running upkeep, and returns what was said."""
    lines: list[str] = []

    def note(_: object, __: str, event: structlog.typing.EventDict) -> str:
        lines.append(str(event["problem"]))
        raise structlog.DropEvent

    def play(story: Story) -> list[str]:
        async def main() -> None:
            bench = _Bench(tmp_path, lines)
            lines.extend(bench.upkeep.begin())
            try:
                await story(bench)
            finally:
                bench.upkeep.close()

        run_virtual(main())
        return lines

    structlog.configure(processors=[note])
    yield play
    structlog.reset_defaults()


@needs_root
@pytest.mark.parametrize("name", ["status", "notices"])
@pytest.mark.parametrize("uid", [12345, 4242])
def test_a_folder_that_another_user_made_is_replaced(
    keep: Callable[[Story], list[str]], name: str, uid: int
) -> None:
    """As `mv notices n3; mkdir -m 2770 notices`: no file in it would count."""

    async def story(bench: _Bench) -> None:
        folder = bench.run / name
        folder.rename(bench.run / "n3")
        folder.mkdir()
        os.chown(folder, uid, 12346)
        folder.chmod(0o2770)
        bench.upkeep.look()
        assert folder.stat().st_uid == os.geteuid()
        bench.upkeep.look()

    (line,) = keep(story)
    assert f"{name} was replaced by what uid {uid} has made" in line


@pytest.mark.parametrize("name", ["status", "notices"])
def test_a_folder_that_is_gone_is_made_anew(keep: Callable[[Story], list[str]], name: str) -> None:
    """While the daemon runs, and said once."""

    async def story(bench: _Bench) -> None:
        (bench.run / name).rmdir()
        bench.upkeep.look()
        assert (bench.run / name).is_dir()
        bench.upkeep.look()

    (line,) = keep(story)
    assert f"{name}: gone, and made anew" in line


@pytest.mark.parametrize("how", ["removed", "folder", "link"])
def test_the_lock_is_put_back(keep: Callable[[Story], list[str]], how: str) -> None:
    """Whatever was put in its place: who runs can be seen again."""

    async def story(bench: _Bench) -> None:
        (bench.run / LOCK).unlink()
        if how == "folder":
            (bench.run / LOCK).mkdir()
        elif how == "link":
            (bench.run / LOCK).symlink_to("/etc/passwd")
        assert find_daemon(bench.run) is None
        bench.upkeep.look()
        assert find_daemon(bench.run) == os.getpid()

    assert any("is there again" in line for line in keep(story))


def test_no_second_daemon_begins_while_the_lock_is_away(keep: Callable[[Story], list[str]]) -> None:
    """The lock in the state directory is out of the trainer's reach; afterwards it is free."""

    async def story(bench: _Bench) -> None:
        (bench.run / LOCK).unlink()
        other = _Bench(bench.run.parent, bench.lines)
        with pytest.raises(ConfigError, match=rf"another spotwatch daemon \(pid {os.getpid()}\)"):
            other.upkeep.begin()
        bench.upkeep.close()
        other.upkeep.begin()
        other.upkeep.close()

    keep(story)


def test_a_state_directory_that_cannot_be_used_keeps_no_daemon_down(tmp_path: Path) -> None:
    """It is said, and the lock in the runtime directory holds."""
    (tmp_path / "state").write_text("no folder", encoding="utf-8")

    async def story() -> None:
        bench = _Bench(tmp_path, [])
        (line,) = bench.upkeep.begin()
        assert "no second lock" in line
        assert find_daemon(bench.run) == os.getpid()
        bench.upkeep.close()

    run_virtual(story())


def test_what_is_set_aside_has_a_name_that_nobody_foresees_and_does_not_pile_up(
    keep: Callable[[Story], list[str]],
) -> None:
    """A hundred names in the way change nothing. Of what was set aside the newest is kept."""

    async def story(bench: _Bench) -> None:
        outside = bench.run.parent / "outside"
        outside.mkdir()
        (outside / "precious").touch()
        for number in range(100):
            (bench.run / f"status.refused-{number}").touch()
        for number in range(12):
            (bench.run / "status").rename(bench.run / f"old{number}")
            if number % 3 == 0:
                (bench.run / "status").symlink_to(outside)
            elif number % 3 == 1:
                (bench.run / "status").write_text("mine", encoding="utf-8")
            else:
                (bench.run / "status").mkdir()
                (bench.run / "status").chmod(0o777)
                (bench.run / "status" / "link").symlink_to(outside / "precious")
            bench.upkeep.look()
            assert (bench.run / "status").is_dir()
            assert not (bench.run / "status").is_symlink()
        assert len(list(bench.run.glob("*.refused-*"))) == KEPT_ASIDE
        assert (outside / "precious").exists()

    keep(story)


@needs_root
def test_statuses_of_runs_that_are_long_over_are_removed(keep: Callable[[Story], list[str]]) -> None:
    """Of each owner the newest few stay, and whoever has spoken within the hour; strangers' files stay."""

    async def story(bench: _Bench) -> None:
        old = [bench.status(f"old-{n}", SILENT_SECONDS + 10 + n) for n in range(KEPT_STATUS_FILES + 5)]
        young = [bench.status(f"young-{n}", SILENT_SECONDS - 10 - n) for n in range(3)]
        strange = [bench.status(f"strange-{n}", 9 * SILENT_SECONDS, uid=4242) for n in range(20)]
        bench.upkeep.look()
        kept = [path for path in old if path.exists()]
        assert kept == old[: KEPT_STATUS_FILES - len(young)]
        assert all(path.exists() for path in [*young, *strange])
        late = bench.status("late", 9 * SILENT_SECONDS)
        bench.upkeep.look()
        assert late.exists()
        await bench.clock.sleep(TIDY_SECONDS)
        bench.upkeep.look()
        assert not late.exists()

    assert keep(story) == []


def test_a_dry_run_removes_no_status(tmp_path: Path) -> None:
    """Nor does it write to the state directory."""

    async def story() -> None:
        bench = _Bench(tmp_path, [], is_dry_run=True)
        bench.upkeep.begin()
        old = [bench.status(f"old-{n}", 9 * SILENT_SECONDS) for n in range(KEPT_STATUS_FILES + 1)]
        bench.upkeep.look()
        assert all(path.exists() for path in old)
        assert not (tmp_path / "state").exists()
        bench.upkeep.close()

    run_virtual(story())


def test_it_looks_every_second_whatever_is_wrong(keep: Callable[[Story], list[str]]) -> None:
    """What cannot be mended is said once; when it can be again, it is."""

    async def story(bench: _Bench) -> None:
        task = asyncio.create_task(bench.upkeep.run())
        away = bench.run.parent / "away"
        bench.run.rename(away)
        bench.run.write_text("a file", encoding="utf-8")
        await bench.clock.sleep(5 * LOOK_SECONDS)
        bench.run.unlink()
        away.rename(bench.run)
        (bench.run / "status").rmdir()
        await bench.clock.sleep(2 * LOOK_SECONDS)
        assert (bench.run / "status").is_dir()
        assert not task.done()
        task.cancel()

    lines = keep(story)
    assert sum("not a directory" in line for line in lines) == 1
