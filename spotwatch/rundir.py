# SPDX-License-Identifier: Apache-2.0
"""The runtime directory: made so that daemon and trainer can share it, and cleared of what does not belong.

It does not know what the files in it mean, nor where the directory is; `handshake` and `config_places` do.
Which daemon runs there, `runtime_lock` knows.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import stat
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spotwatch.config import Settings
from spotwatch.config_check import LOCK, resolve_owner
from spotwatch.errors import ConfigError
from spotwatch.handshake import NOTICES_DIR, STATUS_DIR

SHARED = 0o2770
"""Group members write too, and what they make belongs to the group (setgid)."""
PRIVATE = 0o700
KEPT_ASIDE = 8
"""Of what was set aside the newest is kept: somebody may want to know what it was."""
_ASIDE = re.compile(r"\.refused-[0-9a-f]{1,12}$")
_MAX_ENTRIES = 1000
_MAX_REMOVED = 64


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
        raise ConfigError(
            f"runtime_dir {path} cannot be made: {error.strerror}{explain_error(error)}"
        ) from error
    with contextlib.ExitStack() as stack:
        top = _prepare(path, path, access, None, stack)
        for name in (STATUS_DIR, NOTICES_DIR):
            _prepare(path / name, Path(name), access, top, stack)


def clear_the_way(path: Path) -> list[str]:
    """Set aside what stands in our own runtime directory where a daemon's folder or lock belongs.

    The trainer's group may rename and replace there. Its user must not keep every later daemon from starting,
    nor this one from hearing: a link, a file, and a folder that is closed to us, open to everyone or another
    user's (whose notices no daemon believes) get another name, and a new one can be made.

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
    wanted = ((STATUS_DIR, _is_our_folder), (NOTICES_DIR, _is_our_folder), (LOCK, _is_file))
    return [
        said
        for name, is_right in wanted
        if not _is_right_or_gone(path / name, is_right) and (said := set_aside(path / name))
    ]


def set_aside(place: Path) -> str:
    """Give what stands at `place` a name that nobody can foresee, and say so; empty when that failed.

    Of what was set aside in this directory the oldest is removed.
    """
    aside = place.with_name(f"{place.name}.refused-{uuid.uuid4().hex[:12]}")
    try:
        uid = place.lstat().st_uid
        place.rename(aside)
    except OSError:
        return ""  # gone by now; or else what comes next refuses it, and says why
    _remove_old_asides(place.parent)
    return (
        f"{place} was replaced by what uid {uid} has made: set aside as {aside.name}, and made anew; look at "
        "what runs as that user"
    )


def _remove_old_asides(folder: Path) -> None:
    """Remove what was set aside earlier, but for the newest; what resists stays."""
    found: list[tuple[int, Path]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in itertools.islice(entries, _MAX_ENTRIES):
            if _ASIDE.search(entry.name):
                with contextlib.suppress(OSError):
                    found.append((entry.stat(follow_symlinks=False).st_ctime_ns, Path(entry.path)))
    for _, path in sorted(found, reverse=True)[KEPT_ASIDE : KEPT_ASIDE + _MAX_REMOVED]:
        with contextlib.suppress(OSError):
            _remove(path)


def _remove(path: Path) -> None:
    """Remove a file, or a folder with the files in it; no link is followed.

    Raises:
        OSError: it is not ours to remove, or too much is in it.
    """
    if not stat.S_ISDIR(path.lstat().st_mode):
        path.unlink()
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with os.scandir(fd) as entries:
            for entry in itertools.islice(entries, _MAX_ENTRIES):
                os.unlink(entry.name, dir_fd=fd)
    finally:
        os.close(fd)
    path.rmdir()


def _is_right_or_gone(place: Path, is_right: Callable[[Path], bool]) -> bool:
    try:
        return is_right(place)
    except OSError:
        return True


def _is_our_folder(place: Path) -> bool:
    """Tell whether a folder is one that the daemon can use and whose files it believes, as `file` does."""
    facts = place.lstat()
    is_sound = stat.S_ISDIR(facts.st_mode) and not facts.st_mode & stat.S_IWOTH
    is_ours = facts.st_uid in (0, os.geteuid())
    return is_sound and is_ours and os.access(place, os.R_OK | os.W_OK | os.X_OK)


def _is_file(place: Path) -> bool:
    return stat.S_ISREG(place.lstat().st_mode)


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
            "member of the group of flag.owner, or set runtime_dir; in a container, mount a volume there to "
            "which its user may write"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"runtime_dir: {path} cannot be made: {error.strerror}{explain_error(error)}"
        ) from error
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


def explain_error(error: OSError) -> str:
    """Return how to mend what kept a file or directory from being made, after a semicolon; may be empty."""
    if error.errno == errno.EROFS:
        return "; set runtime_dir, or ReadWritePaths= in the daemon's unit; in a container, mount a volume"
    return "; make room there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""


def _refuse(path: Path, facts: os.stat_result, uids: frozenset[int]) -> None:
    if stat.S_ISLNK(facts.st_mode):
        raise ConfigError(f"runtime_dir: {path} is a link; it could lead anywhere, remove it")
    if not stat.S_ISDIR(facts.st_mode):
        raise ConfigError(f"runtime_dir: {path} is not a directory")
    if facts.st_uid not in uids:
        raise ConfigError(
            f"runtime_dir: {path} belongs to uid {facts.st_uid}, neither ours nor the trainer's; "
            "set SPOTWATCH_RUNTIME_DIR to one of your own, for the trainer too; or remove this one, if no "
            "daemon of that user's runs"
        )
    if facts.st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"runtime_dir: {path} is writable by everyone, so anyone could stop the trainer; "
            "look through its files, then chmod o-w it"
        )
