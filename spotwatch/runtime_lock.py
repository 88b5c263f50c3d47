# SPDX-License-Identifier: Apache-2.0
"""Which daemon runs on a runtime directory: a lock on a file, and how everybody finds out who holds it.

The trainer's group may rename and remove there, so a name proves little. Only the daemon's user may open the
file, and so nobody else can hold or await its lock; what others put in its place counts for nothing, and the
daemon puts its own back (`RuntimeLock.keep`). Meanwhile a second lock, in the state directory, keeps a second
daemon out. It does not know what else is in these directories.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from spotwatch.config_check import LOCK
from spotwatch.errors import ConfigError
from spotwatch.rundir import explain_error

_PATIENCE_SECONDS = 0.5
"""`find_daemon` holds the lock for microseconds to find out; a daemon that starts then must not give up."""
_ATTEMPTS = 100
"""So often what others put in our place is removed before we give up."""
_PRIVATE = 0o600
# One line a lock: "1: FLOCK  ADVISORY  WRITE 1234 00:1b:5678 0 EOF" (proc(5)).
_LOCKS = Path("/proc/locks")


class OtherDaemonError(ConfigError):
    """Another daemon holds the lock."""


class RuntimeLock:
    """The right to be the one daemon, held until `close` or the end of the process."""

    def __init__(self, place: Path, fd: int) -> None:
        self._place = place
        self._fd = fd

    def keep(self) -> str:
        """Put the lock back if somebody has taken it away; return a line that says so, or nothing."""
        if self._fd < 0 or _is_in_place(self._fd, self._place):
            return ""
        try:
            fd = _take(self._place, patience_seconds=0.0)
        except ConfigError as error:
            return f"our own lock is gone: {error}"
        os.close(self._fd)
        self._fd = fd
        return f"{self._place} was taken away, and is there again; look at what runs as the trainer's user"

    def close(self) -> None:
        """Let the next daemon in; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def lock_runtime_dir(path: Path) -> RuntimeLock:
    """Take the lock of the runtime directory `path` and write our pid into it.

    Raises:
        OtherDaemonError: another daemon holds it, whose pid is named.
        ConfigError: the file can be neither used nor made anew.
    """
    return RuntimeLock(path / LOCK, _take(path / LOCK, patience_seconds=_PATIENCE_SECONDS))


def lock_state_dir(state_dir: Path, runtime_dir: Path) -> RuntimeLock:
    """Take the lock that stands for `runtime_dir` in `state_dir`, where no trainer may write.

    Daemons on other runtime directories have other locks.

    Raises:
        OtherDaemonError, ConfigError: as `lock_runtime_dir`.
    """
    number = hashlib.sha256(os.fsencode(runtime_dir.resolve())).hexdigest()[:12]
    place = state_dir / f"daemon-{number}.lock"
    return RuntimeLock(place, _take(place, patience_seconds=_PATIENCE_SECONDS))


def find_daemon(path: Path) -> int | None:
    """Return the pid of the daemon on the runtime directory `path`; 0: one runs, its pid is unreadable.

    None when none runs, or when this user may not look: the directory is closed to them, or the daemon is
    another user's in another pid namespace.
    """
    place = path / LOCK
    try:
        top, facts = path.stat(), place.lstat()
        if not stat.S_ISREG(facts.st_mode) or not _may_be_a_daemons(facts, top):
            return None
        fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        return _holder(place)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _read_pid(fd)
    finally:
        os.close(fd)
    return None


def _may_be_a_daemons(facts: os.stat_result, top: os.stat_result) -> bool:
    """Tell whether a lock is not one that somebody of the directory's group has put there.

    In a directory of root's, as a pod's volume is, the daemon may be anybody.
    """
    return top.st_uid == 0 or facts.st_uid in (0, top.st_uid, os.geteuid())


def _take(place: Path, *, patience_seconds: float) -> int:
    """Return a descriptor that holds the lock of the file at `place`, which is ours alone to open."""
    give_up_at = time.monotonic() + patience_seconds
    users = _users(place.parent)
    removed = 0
    while removed < _ATTEMPTS:
        fd = _open(place)
        if fd is None:
            fd = _make(place)
            if fd is not None:
                return fd
            removed += 1  # it appeared just now
            continue
        facts = os.fstat(fd)
        is_ours = facts.st_uid in users and not stat.S_IMODE(facts.st_mode) & 0o077
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_free = True
        except OSError:
            is_free = False
        if is_free and is_ours and _is_in_place(fd, place):
            _write_pid(fd)
            return fd
        pid = _read_pid(fd)
        os.close(fd)
        if not is_free and (is_ours or _is_daemon(pid, users)):
            if time.monotonic() < give_up_at:
                time.sleep(0.02)
                continue
            who = f"pid {pid}" if pid else "a process that has not written its pid"
            raise OtherDaemonError(
                f"another spotwatch daemon ({who}) runs on {place.parent}; stop it, or give this one its own "
                "--runtime-dir and --state-dir"
            )
        if not is_ours:
            # Whoever may open it may hold it for ever: it is no daemon's, or an earlier version's.
            _remove(place)
        removed += 1
    raise ConfigError(
        f"{place} is replaced again and again; look at what runs as the trainer's user, and stop it"
    )


def _open(place: Path) -> int | None:
    """Return a descriptor of the file at `place`; None when there is none.

    Raises:
        OtherDaemonError: root's daemon holds it.
        ConfigError: it cannot be opened or is no regular file.
    """
    try:
        # Non-blocking: a pipe planted under this name would hang the start.
        fd = os.open(place, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        pid = _holder(place) if error.errno == errno.EACCES else None
        if pid is not None:
            raise OtherDaemonError(f"another spotwatch daemon (pid {pid}) runs on {place.parent}") from error
        if error.errno == errno.EACCES and place.parent.stat().st_uid == os.geteuid():
            _remove(place)
            return None
        is_theirs = error.errno == errno.EACCES
        mend = "; if another user has made it, remove it" if is_theirs else explain_error(error)
        raise ConfigError(f"{place} cannot be opened: {error.strerror}{mend}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ConfigError(f"{place} is not a regular file; remove it")
    return fd


def _make(place: Path) -> int | None:
    """Return a descriptor of a new file at `place` whose lock is ours; None: somebody was faster."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(place, flags, _PRIVATE)
    except FileExistsError:
        return None
    except OSError as error:
        raise ConfigError(f"{place} cannot be opened: {error.strerror}{explain_error(error)}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    _write_pid(fd)
    return fd


def _remove(place: Path) -> None:
    try:
        place.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{place} is another user's and cannot be removed: {error.strerror}") from error


def _users(folder: Path) -> frozenset[int]:
    """Return whose daemons we know of: root's, our own, and to root those of the directory's owner."""
    uid = os.geteuid()
    return frozenset({0, uid, folder.stat().st_uid if uid == 0 else uid})


def _is_daemon(pid: int, users: frozenset[int]) -> bool:
    """Tell whether `pid` is a process of one of `users`: earlier versions left their lock open to others."""
    try:
        return pid > 0 and Path(f"/proc/{pid}").stat().st_uid in users
    except OSError:
        return False


def _is_in_place(fd: int, place: Path) -> bool:
    try:
        there = place.lstat()
    except OSError:
        return False
    ours = os.fstat(fd)
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def _holder(place: Path) -> int | None:
    """Return who holds the lock of a file that we may not open, as the kernel lists it; None: nobody does.

    On btrfs and overlayfs the kernel names another device than `stat` does, and nobody is found.
    """
    try:
        facts = place.lstat()
        lines = _LOCKS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    rows = [line.split() for line in lines if " FLOCK " in line and "->" not in line]
    inode = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"
    pids = [row[4] for row in rows if inode in row]
    return next((int(pid) for pid in pids if pid.isdigit()), None)


def _write_pid(fd: int) -> None:
    with contextlib.suppress(OSError):
        # On a full disk the lock holds all the same, only our name is not in it.
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)


def _read_pid(fd: int) -> int:
    text = os.pread(fd, 20, 0).strip()
    return int(text) if text.isdigit() else 0
