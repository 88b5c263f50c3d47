# SPDX-License-Identifier: Apache-2.0
"""One daemon at a time on a runtime directory, whatever the trainer's user puts there or holds.

Who else may write in it is tested with the directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwatch.config import Settings
from spotwatch.config_check import LOCK
from spotwatch.errors import ConfigError
from spotwatch.rundir import prepare_runtime_dir
from spotwatch.runtime_lock import find_daemon, lock_runtime_dir, lock_state_dir
from tests.cli.stranger import open_to_all

_TRAINER, _GROUP = 12345, 12346
# The interpreter's own files may be closed to others, so the user changes after the imports.
_AS_TRAINER = (
    "import encodings.ascii, fcntl, os, sys; from pathlib import Path\n"
    "from spotwatch.runtime_lock import find_daemon\n"
    f"os.setgroups([{_GROUP}]); os.setgid({_TRAINER}); os.setuid({_TRAINER}); run = Path(sys.argv[1])\n"
)
_HOLD = "fcntl.flock(fd, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to play another user")


def test_one_daemon_at_a_time(tmp_path: Path) -> None:
    """The second is told the first one's pid; after the first is gone the next gets in."""
    with lock_runtime_dir(tmp_path):
        assert find_daemon(tmp_path) == os.getpid()
        with pytest.raises(ConfigError, match=rf"\(pid {os.getpid()}\) runs on {tmp_path}"):
            lock_runtime_dir(tmp_path)
    assert find_daemon(tmp_path) is None
    lock_runtime_dir(tmp_path).close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start another process that holds the lock."""
    script = (
        "import sys; from pathlib import Path; from spotwatch.runtime_lock import lock_runtime_dir\n"
        "lock = lock_runtime_dir(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_lock_dies_with_its_process(tmp_path: Path, daemon: subprocess.Popen[str]) -> None:
    """SIGKILL leaves the file behind, but no lock: the next start succeeds at once."""
    assert find_daemon(tmp_path) == daemon.pid
    daemon.kill()
    daemon.wait()
    assert (tmp_path / LOCK).exists()
    assert find_daemon(tmp_path) is None
    with lock_runtime_dir(tmp_path):
        assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"


def test_no_daemon_where_nothing_is(tmp_path: Path) -> None:
    """A missing directory, or one without a lock file, has no daemon."""
    assert find_daemon(tmp_path / "none") is None
    assert find_daemon(tmp_path) is None


def test_a_lock_on_a_removed_file_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is removed between open and lock excludes nobody, so the lock is taken on a new one."""
    lock_runtime_dir(tmp_path).close()
    real, calls = fcntl.flock, []

    def remove_first(fd: int, operation: int) -> None:
        real(fd, operation)
        calls.append(fd)
        if len(calls) == 1:
            (tmp_path / LOCK).unlink()

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with lock_runtime_dir(tmp_path):
        monkeypatch.undo()
        assert len(calls) == 2
        assert find_daemon(tmp_path) == os.getpid()


def test_hostile_lock_file_is_refused(tmp_path: Path) -> None:
    """Neither a link nor a pipe under the lock's name is opened, and nothing hangs."""
    (tmp_path / LOCK).symlink_to("/etc/passwd")
    with pytest.raises(ConfigError, match="cannot be opened"):
        lock_runtime_dir(tmp_path)
    (tmp_path / LOCK).unlink()
    os.mkfifo(tmp_path / LOCK)
    with pytest.raises(ConfigError, match="not a regular file"):
        lock_runtime_dir(tmp_path)
    assert find_daemon(tmp_path) is None


def test_the_lock_holds_on_a_full_disk(tmp_path: Path) -> None:
    """Not a byte can be written: the watch begins all the same, and a second daemon is kept out."""
    prepare_runtime_dir(Settings(runtime_dir=tmp_path / "run"))
    code = (
        "import resource, sys; from pathlib import Path; from spotwatch.runtime_lock import lock_runtime_dir;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0));"
        f"lock = lock_runtime_dir(Path({str(tmp_path / 'run')!r}));"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert find_daemon(tmp_path / "run") == 0
        with pytest.raises(ConfigError, match="another spotwatch daemon"):
            lock_runtime_dir(tmp_path / "run")


@pytest.fixture
def shared() -> Iterator[Path]:
    """Give a directory as a root daemon makes it, on a tmpfs as /run is."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        run = Path(place) / "run"
        prepare_runtime_dir(Settings(runtime_dir=run), (_TRAINER, _GROUP))
        Path(place).chmod(0o755)
        yield run


def as_trainer(code: str, run: Path) -> subprocess.CompletedProcess[str]:
    """Run Python as the trainer's user, who is in the directory's group."""
    command = [sys.executable, "-c", _AS_TRAINER + code, str(run)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)


@contextlib.contextmanager
def held_by_trainer(code: str, run: Path) -> Iterator[None]:
    """Have the trainer's user hold a lock that `code` opens as `fd`."""
    with subprocess.Popen(
        [sys.executable, "-c", f"{_AS_TRAINER}{code}\n{_HOLD}", str(run)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
        process.kill()


_OPEN = f"fd = os.open(run / {LOCK!r}, os.O_RDONLY)"
_PLANT = (
    f"(run / {LOCK!r}).unlink(missing_ok=True); fd = os.open(run / {LOCK!r}, os.O_RDWR | os.O_CREAT, 0o600)"
)


@needs_root
def test_nobody_else_can_open_the_lock(shared: Path) -> None:
    """So that nobody else can hold it, or wait until the daemon restarts to have it."""
    with lock_runtime_dir(shared):
        assert "PermissionError" in as_trainer(_OPEN, shared).stderr
    assert "PermissionError" in as_trainer(_OPEN, shared).stderr


@needs_root
def test_a_user_who_cannot_open_it_sees_who_runs(shared: Path) -> None:
    """The kernel lists who holds a lock; and that nobody does."""
    ask = "print(find_daemon(run))"
    with lock_runtime_dir(shared):
        assert as_trainer(ask, shared).stdout == f"{os.getpid()}\n"
    assert as_trainer(ask, shared).stdout == "None\n"


@needs_root
@pytest.mark.parametrize("pid", ["410", "", "1" * 20])
def test_a_lock_that_an_earlier_version_left_open_to_others(shared: Path, pid: str) -> None:
    """The trainer's user waited for it and holds it: the daemon takes a new one, and no dead pid is named."""
    (shared / LOCK).write_text(pid, encoding="ascii")
    (shared / LOCK).chmod(0o640)
    os.chown(shared / LOCK, -1, _GROUP)
    with held_by_trainer(_OPEN, shared), lock_runtime_dir(shared):
        assert find_daemon(shared) == os.getpid()
        assert (shared / LOCK).stat().st_mode & 0o777 == 0o600


def test_a_daemon_of_an_earlier_version_still_counts(tmp_path: Path) -> None:
    """Its lock is open to its group, and the pid in it is of a process that lives."""
    with (tmp_path / LOCK).open("w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(str(os.getpid()))
        file.flush()
        (tmp_path / LOCK).chmod(0o640)
        with pytest.raises(ConfigError, match=f"pid {os.getpid()}"):
            lock_runtime_dir(tmp_path)
        assert find_daemon(tmp_path) == os.getpid()


@needs_root
def test_a_lock_of_the_trainers_user_is_none(tmp_path: Path) -> None:
    """In a daemon's directory it names no daemon, and the next daemon replaces it."""
    run = tmp_path / "run"
    prepare_runtime_dir(Settings(runtime_dir=run), (_TRAINER, _GROUP))
    open_to_all(tmp_path)
    # Any daemon's user but root: what root owns, anybody may serve.
    os.chown(run, 4242, _GROUP)
    with held_by_trainer(_PLANT, run):
        assert find_daemon(run) is None
        with lock_runtime_dir(run):
            assert find_daemon(run) == os.getpid()


@pytest.mark.parametrize("how", ["removed", "renamed", "replaced"])
def test_a_lock_that_was_taken_away_is_put_back(tmp_path: Path, how: str) -> None:
    """While the daemon runs: it is seen again, a second one is refused, and one line says so."""
    with lock_runtime_dir(tmp_path) as lock:
        assert lock.keep() == ""
        if how == "renamed":
            (tmp_path / LOCK).rename(tmp_path / "old")
        else:
            (tmp_path / LOCK).unlink()
        if how == "replaced":
            (tmp_path / LOCK).write_text("1\n", encoding="ascii")
            (tmp_path / LOCK).chmod(0o666)
        assert find_daemon(tmp_path) is None
        assert "was taken away, and is there again" in lock.keep()
        assert lock.keep() == ""
        assert find_daemon(tmp_path) == os.getpid()
        with pytest.raises(ConfigError, match="another spotwatch daemon"):
            lock_runtime_dir(tmp_path)
    assert find_daemon(tmp_path) is None


def test_a_second_daemon_that_came_meanwhile_is_named(tmp_path: Path, daemon: subprocess.Popen[str]) -> None:
    """Ours was taken away and another daemon has begun: that is said, and nothing is taken from it."""
    (tmp_path / LOCK).rename(tmp_path / "old")
    with lock_runtime_dir(tmp_path) as lock:
        (tmp_path / LOCK).unlink()
        (tmp_path / "old").rename(tmp_path / LOCK)
        assert f"another spotwatch daemon (pid {daemon.pid})" in lock.keep()
    assert find_daemon(tmp_path) == daemon.pid


def test_the_second_lock_keeps_a_second_daemon_out(tmp_path: Path) -> None:
    """It lies where no trainer may write; another runtime directory has another."""
    run, other = tmp_path / "run", tmp_path / "other"
    with lock_state_dir(tmp_path, run):
        with pytest.raises(ConfigError, match=rf"\(pid {os.getpid()}\)"):
            lock_state_dir(tmp_path, run.parent / "." / "run")
        lock_state_dir(tmp_path, other).close()
    lock_state_dir(tmp_path, run).close()
