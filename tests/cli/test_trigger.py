# SPDX-License-Identifier: Apache-2.0
"""A notice by hand is written whole, in the right place, and one is told what will come of it.

That the daemon acts on it is tested with the `file` provider and the daemon.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spotwatch.cli.trigger import command, read_deadline
from spotwatch.errors import ConfigError
from spotwatch.runtime_lock import lock_runtime_dir
from spotwatch.testing import EPOCH
from tests.cli.stranger import STRANGER, open_to_all, run_as_stranger
from tests.families import needs_root


def trigger(runtime_dir: Path, *arguments: str) -> Result:
    """Run the command on `runtime_dir`."""
    return CliRunner().invoke(command, [*arguments, "--runtime-dir", str(runtime_dir)])


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    """Return a runtime directory that a daemon (this process) holds."""
    path = tmp_path / "run"
    (path / "notices").mkdir(parents=True)
    with lock_runtime_dir(path):
        yield path


def notice(runtime_dir: Path) -> dict[str, object]:
    """Return the notice in force."""
    row: dict[str, object] = json.loads((runtime_dir / "notices" / "manual.json").read_text())
    return row


def test_stop_in_two_hours(running: Path) -> None:
    """The deadline counts from now, and the outcome is foretold."""
    before = datetime.now(UTC)
    result = trigger(running, "stop", "--deadline", "2h", "--why", "host\nmaintenance")
    assert result.exit_code == 0, result.output
    row = notice(running)
    deadline = datetime.fromisoformat(str(row["deadline"]))
    assert timedelta(hours=2) <= deadline - before + timedelta(seconds=1) <= timedelta(hours=2, seconds=30)
    assert (row["do"], row["why"]) == ("stop", "host\\nmaintenance")
    assert "(in 2 h)" in result.output
    assert f"The daemon (pid {os.getpid()}) sees it within a second" in result.output
    assert "exit in time before the deadline" in result.output


def test_flush_now(running: Path) -> None:
    """Without a deadline it is now; a second notice replaces the first."""
    assert "save and go on" in trigger(running, "flush").output
    assert notice(running) == {"do": "flush", "deadline": None, "why": ""}
    result = trigger(running, "stop")
    assert "save and exit at once" in result.output
    assert "replaces an earlier one" in result.output
    assert notice(running)["do"] == "stop"
    assert [p.name for p in (running / "notices").iterdir()] == ["manual.json"]
    assert stat.S_IMODE((running / "notices" / "manual.json").stat().st_mode) == 0o644


def test_clear_takes_it_back(running: Path) -> None:
    """The file is gone; a second time there is nothing, which is no failure."""
    trigger(running, "stop")
    result = trigger(running, "clear")
    assert result.exit_code == 0
    assert "withdrawn" in result.output
    assert not list((running / "notices").iterdir())
    result = trigger(running, "clear")
    assert (result.exit_code, "no notice by hand" in result.output) == (0, True)


def test_without_a_daemon_it_is_written_and_said(tmp_path: Path) -> None:
    """Exit 1, and the notice waits for the next daemon, in a directory made like the daemon's."""
    result = trigger(tmp_path / "run", "stop")
    assert result.exit_code == 1
    assert f"No daemon runs on {tmp_path}/run" in result.output
    assert notice(tmp_path / "run")["do"] == "stop"
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) & 0o7 == 0
    assert trigger(tmp_path / "run", "clear").exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("stop", "--deadline", "soon"),
        ("stop", "--deadline", "2020-01-01T00:00:00Z"),
        ("clear", "--why", "x"),
        ("go",),
    ],
)
def test_bad_usage_writes_nothing(arguments: tuple[str, ...], running: Path) -> None:
    """A mistake exits 2 and leaves no notice."""
    assert trigger(running, *arguments).exit_code == 2
    assert not list((running / "notices").iterdir())


@needs_root
@pytest.mark.parametrize("is_running", [True, False])
def test_a_folder_that_no_daemon_believes_is_refused(running: Path, tmp_path: Path, is_running: bool) -> None:
    """Another user has put it there: no promise that the daemon will see it, and what to do."""
    path = running if is_running else tmp_path / "other"
    (path / "notices").mkdir(parents=True, exist_ok=True)
    os.chown(path / "notices", 12345, 12345)
    result = trigger(path, "stop")
    assert isinstance(result.exception, ConfigError)
    assert "was made by uid 12345" in str(result.exception)
    assert "remove it" in str(result.exception)
    assert list((path / "notices").iterdir()) == []


def test_help_shows_examples_line_by_line() -> None:
    """Nobody reads examples that run into each other."""
    output = CliRunner().invoke(command, ["--help"]).output
    assert "\n  Take it back:                        spotwatch trigger clear\n" in output


@pytest.mark.parametrize("text", ["30s", "30", "0.5m", "2026-11-29T12:00:30Z", "2026-11-29T13:00:30+01:00"])
def test_deadline_forms(text: str) -> None:
    """Durations and RFC 3339 times name the same moment."""
    assert read_deadline(text, EPOCH) == EPOCH + timedelta(seconds=30)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tomorrow", "neither a duration"),
        ("2026-11-29T13:00:00", "neither a duration"),
        ("2026-11-29T11:59:59Z", "has passed"),
        ("999999999h", "beyond the calendar"),
    ],
)
def test_bad_deadline(text: str, said: str) -> None:
    """Each says what is wanted."""
    with pytest.raises(ValueError, match=said):
        read_deadline(text, EPOCH)


@pytest.mark.parametrize("name", ["", "notices"])
def test_planted_link_is_not_followed(name: str, tmp_path: Path) -> None:
    """Root's notice must not land where a link points to."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "notices").mkdir(parents=True)
    run = tmp_path / "run"
    if name:
        run.mkdir()
        (run / name).symlink_to(elsewhere)
    else:
        run.symlink_to(elsewhere)
    result = trigger(run, "stop")
    assert isinstance(result.exception, ConfigError)
    assert "is a link" in str(result.exception)
    assert not list(elsewhere.glob("**/*.json"))


@needs_root
def test_another_users_daemon_is_explained(running: Path) -> None:
    """Who may not write there is told how to."""
    open_to_all(running / "notices")
    done = run_as_stranger("trigger", "stop", "--runtime-dir", str(running))
    assert done.returncode == 2
    assert "Permission denied; the daemon is another user's: use sudo" in done.stderr
    assert "Traceback" not in done.stderr


@needs_root
@pytest.mark.parametrize("what", ["stop", "clear"])
@pytest.mark.parametrize("closed", [".", "..", "notices"])
def test_a_closed_directory_is_named(what: str, closed: str, running: Path) -> None:
    """Whichever directory on the way hides the place, it is named, and the way out is sudo."""
    open_to_all(running / "notices")
    folder = (running / closed).resolve()
    folder.chmod(0o700)
    done = run_as_stranger("trigger", what, "--runtime-dir", str(running))
    assert done.returncode == 2
    assert done.stderr.startswith(f"spotwatch: {folder} is closed to uid {STRANGER}, so that no notice")
    assert "use sudo" in done.stderr


def test_a_misspelt_place_is_not_made(tmp_path: Path) -> None:
    """Where not even the parent is there, no daemon would look for it either."""
    result = trigger(tmp_path / "typo" / "run", "stop")
    assert isinstance(result.exception, ConfigError)
    assert f"there is no {tmp_path}/typo, and so no daemon on {tmp_path}/typo/run" in str(result.exception)
    assert not list(tmp_path.iterdir())


def test_a_place_of_the_system_that_we_may_write_to_asks_for_no_sudo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one may write to oneself is only named when a daemon is there."""
    system = tmp_path / "system"
    system.mkdir()
    monkeypatch.setattr("spotwatch.cli.trigger.RUN", system)
    output = trigger(tmp_path / "run", "stop").output
    assert "sudo" not in output
    assert str(system) not in output
    with lock_runtime_dir(system):
        output = trigger(tmp_path / "run", "stop").output
    assert f"One runs on {system}: name it with --runtime-dir." in output


@pytest.mark.parametrize(
    ("number", "said", "unsaid"),
    [
        (errno.ENOSPC, "make room there", "sudo"),
        (errno.EDQUOT, "make room there", "sudo"),
        (errno.EROFS, "read-only", "sudo"),
        (errno.EIO, "see what is wrong with", "sudo"),
        (errno.EACCES, "use sudo", "make room"),
    ],
)
def test_advice_follows_the_systems_reason(
    number: int, said: str, unsaid: str, running: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is not mended with sudo."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fchmod", fail)
    result = trigger(running, "stop")
    assert isinstance(result.exception, ConfigError)
    assert said in str(result.exception)
    assert unsaid not in str(result.exception)


@pytest.mark.parametrize("text", ["0", "0s"])
def test_no_time_at_all_is_at_once(text: str, running: Path) -> None:
    """A deadline of now would be missed already; whoever counts down to zero still wants the stop."""
    result = trigger(running, "stop", "--deadline", text)
    assert result.exit_code == 0, result.output
    assert notice(running)["deadline"] is None
    assert "save and exit at once. Take it back" in result.output
