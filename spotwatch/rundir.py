# SPDX-License-Identifier: Apache-2.0
"""The runtime directory: made so that daemon and trainer can share it, and held by one daemon at a time.

It does not know what the files in it mean, nor where the directory is; `handshake` and `config_places` do.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from spotwatch.config import Settings
from spotwatch.config_check import LOCK, resolve_owner
from spotwatch.errors import ConfigError
from spotwatch.handshake import NOTICES_DIR, STATUS_DIR

SHARED = 0o2770
"""Group members write too, and what they make belongs to the group (setgid)."""
PRIVATE = 0o700
_MAX_ASIDE = 100
_LOCK_PATIENCE_SECONDS = 0.5
"""`is_held` holds the lock for microseconds to find out; a daemon that starts then must not give up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may use the directory."""

    mode: int
    gid: int
    """-1: our own."""
    uids: frozenset[int]
    """Whose directory it may be."""


def choose_access(owner: tuple[int, int] | None, *, uid: int, is_owner_named: bool) -> Access:
    """Return the access that lets the trainer in and nobody else.

    Args:
        owner: uid and gid of the trainer; None: unknown.
        uid: our own; root shares with the trainer's group.
        is_owner_named: the owner was set in the configuration, so that an ordinary user wants to share too.
    """
    uids = frozenset({0, uid} | ({owner[0]} if owner else set()))
    if uid == 0 or (owner is not None and is_owner_named):
        return Access(mode=SHARED, gid=owner[1] if owner else -1, uids=uids)
    return Access(mode=PRIVATE, gid=-1, uids=uids)


def prepare_runtime_dir(settings: Settings, owner: tuple[int, int] | None = None) -> None:
    """Make the runtime directory with `status/` and `notices/`, or mend their group and mode.

    Args:
        settings: `runtime_dir` and `flag.owner`, which goes before `owner`.
        owner: uid and gid of the target; None: unknown.

    Raises:
        ConfigError: one of them is a link, a stranger's, writable by everyone, or cannot be made.
    """
    named = resolve_owner(settings.flag.owner)
    access = choose_access(named or owner, uid=os.geteuid(), is_owner_named=named is not None)
    path = settings.runtime_dir
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"runtime_dir {path} cannot be made: {error.strerror}{_mend_of(error)}") from error
    with contextlib.ExitStack() as stack:
        top = _prepare(path, path, access, None, stack)
        for name in (STATUS_DIR, NOTICES_DIR):
            _prepare(path / name, Path(name), access, top, stack)


def clear_the_way(path: Path) -> list[str]:
    """Set aside what stands in our own runtime directory where a daemon's folder or lock belongs.

    The trainer's group may rename and replace there. Its user must not keep every later daemon from starting:
    a link, a file or a folder that is closed to us gets another name, and a new one is made.

    Args:
        path: the runtime directory; one that is not there, or not ours, is left alone.

    Returns:
        A line for each thing that was set aside.
    """
    try:
        facts = path.lstat()
    except OSError:
        return []
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        return []
    wanted = ((STATUS_DIR, _is_our_folder), (NOTICES_DIR, _is_our_folder), (LOCK, _is_our_lock))
    wrong = [
        path / name for name, is_right in wanted if os.path.lexists(path / name) and not is_right(path / name)
    ]
    return [said for place in wrong if (said := _set_aside(place))]


def _set_aside(place: Path) -> str:
    names = (place.with_name(f"{place.name}.refused-{number}") for number in range(_MAX_ASIDE))
    aside = next((name for name in names if not os.path.lexists(name)), None)
    if aside is None:
        return ""  # then it is refused, as it always was
    uid = place.lstat().st_uid
    place.rename(aside)
    return (
        f"{place} was replaced by what uid {uid} has made: set aside as {aside.name}, and made anew; look at "
        "what runs as that user"
    )


def _is_our_folder(place: Path) -> bool:
    facts = place.lstat()
    is_sound = stat.S_ISDIR(facts.st_mode) and not facts.st_mode & stat.S_IWOTH
    return is_sound and os.access(place, os.R_OK | os.W_OK | os.X_OK)


def _is_our_lock(place: Path) -> bool:
    return stat.S_ISREG(place.lstat().st_mode) and os.access(place, os.R_OK | os.W_OK)


def check_runtime_dir(path: Path, *, uids: frozenset[int] | None) -> None:
    """Refuse a directory that must not be believed or written to.

    Args:
        path: the runtime directory or one in it.
        uids: whose it may be; None: anyone's.

    Raises:
        ConfigError: it is missing, a link, writable by everyone, or of another user.
    """
    try:
        facts = path.lstat()
    except OSError as error:
        raise ConfigError(f"{path} cannot be used: {error.strerror}") from error
    _refuse(path, facts, frozenset({facts.st_uid}) if uids is None else uids)


def _prepare(path: Path, name: Path, access: Access, at: int | None, stack: contextlib.ExitStack) -> int:
    """Make one directory, relative to the descriptor `at`, and return a descriptor of it."""
    try:
        with contextlib.suppress(FileExistsError):
            _make(name, at)
        _refuse(path, os.stat(name, dir_fd=at, follow_symlinks=False), access.uids)
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        stack.callback(os.close, fd)
        facts = os.fstat(fd)
        _refuse(path, facts, access.uids)  # what was opened, not what was there a moment ago
        if facts.st_uid == os.geteuid() or os.geteuid() == 0:
            _mend(path, fd, facts, access)
    except PermissionError as error:
        raise ConfigError(
            f"runtime_dir: {path} cannot be made ours: {error.strerror}; run as its owner or as root, be a "
            "member of the group of flag.owner, or set runtime_dir"
        ) from error
    except OSError as error:
        raise ConfigError(f"runtime_dir: {path} cannot be made: {error.strerror}{_mend_of(error)}") from error
    return fd


def _make(name: Path, at: int | None) -> None:
    """Make one directory, private unless the one above is shared already: then like that one."""
    if at is None or stat.S_IMODE(os.fstat(at).st_mode) != SHARED:
        os.mkdir(name, PRIVATE, dir_fd=at)
        return
    # The setgid bit comes from above: a sandbox (RestrictSUIDSGID=) forbids to set it, and any change of
    # mode would drop it; so the mode must be right at once, whatever the umask.
    before = os.umask(0)
    try:
        os.mkdir(name, SHARED & 0o777, dir_fd=at)
    finally:
        os.umask(before)


def _mend(path: Path, fd: int, facts: os.stat_result, access: Access) -> None:
    """Give a directory its group and mode; one that is shared already is never closed again."""
    # First the group, then the mode: a change of group clears the setgid bit.
    if access.gid not in (-1, facts.st_gid):
        try:
            os.fchown(fd, -1, access.gid)
        except PermissionError as error:
            raise ConfigError(
                f"flag.owner: uid {os.geteuid()} may not give {path} to its group, gid {access.gid}; "
                "leave it out and put the trainer into our group (SupplementaryGroups=), or run as root"
            ) from error
    if access.mode == SHARED and stat.S_IMODE(os.fstat(fd).st_mode) != SHARED:
        os.fchmod(fd, SHARED)


def _mend_of(error: OSError) -> str:
    if error.errno == errno.EROFS:
        return "; set runtime_dir, or ReadWritePaths= in the daemon's unit"
    return "; make room there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""


def _refuse(path: Path, facts: os.stat_result, uids: frozenset[int]) -> None:
    if stat.S_ISLNK(facts.st_mode):
        raise ConfigError(f"runtime_dir: {path} is a link; it could lead anywhere, remove it")
    if not stat.S_ISDIR(facts.st_mode):
        raise ConfigError(f"runtime_dir: {path} is not a directory")
    if facts.st_uid not in uids:
        raise ConfigError(
            f"runtime_dir: {path} belongs to uid {facts.st_uid}, neither ours nor the trainer's; "
            "remove it or set runtime_dir"
        )
    if facts.st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"runtime_dir: {path} is writable by everyone, so anyone could stop the trainer; "
            "look through its files, then chmod o-w it"
        )


class RuntimeLock:
    """The right to be the one daemon on a runtime directory, held until `close` or the end of the process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

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
        ConfigError: another daemon holds it, whose pid is named, or the file is not to be trusted.
    """
    give_up_at = time.monotonic() + _LOCK_PATIENCE_SECONDS
    while True:
        fd = _open_lock(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = _read_pid(fd)
            os.close(fd)
            if time.monotonic() < give_up_at:
                time.sleep(0.02)
                continue
            who = f"pid {pid}" if pid else "a process that has not written its pid"
            raise ConfigError(
                f"another spotwatch daemon ({who}) runs on {path}; stop it, or give this one its own "
                "--runtime-dir and --state-dir"
            ) from None
        if _is_in_place(fd, path / LOCK):
            with contextlib.suppress(OSError):
                # On a full disk the lock holds all the same, only our name is not in it.
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
            return RuntimeLock(fd)
        os.close(fd)  # removed or replaced between open and lock: a lock on it would exclude nobody


def find_daemon(path: Path) -> int | None:
    """Return the pid of the daemon on the runtime directory `path`; 0: one runs, its pid is unreadable.

    None when none runs, or when this user may not look: the directory is closed to them.
    """
    try:
        fd = _open_lock(path, os.O_RDONLY)
    except ConfigError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _read_pid(fd)
    finally:
        os.close(fd)
    return None


def _open_lock(path: Path, flags: int) -> int:
    try:
        # Non-blocking: a pipe planted under this name would hang the start.
        fd = os.open(path / LOCK, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o640)
    except OSError as error:
        is_theirs = error.errno == errno.EACCES
        mend = "; if another user has made it, remove it" if is_theirs else _mend_of(error)
        raise ConfigError(f"{path / LOCK} cannot be opened: {error.strerror}{mend}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ConfigError(f"{path / LOCK} is not a regular file; remove it")
    return fd


def _is_in_place(fd: int, path: Path) -> bool:
    try:
        there = path.lstat()
    except OSError:
        return False
    ours = os.fstat(fd)
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def _read_pid(fd: int) -> int:
    text = os.pread(fd, 20, 0).strip()
    return int(text) if text.isdigit() else 0
