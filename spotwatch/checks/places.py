# SPDX-License-Identifier: Apache-2.0
"""Whether the directories can be used: the one where daemon and trainer meet, and the one that outlives both.

Writing is really tried, under a scratch name that is gone at once; nothing else is changed.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

from spotwatch.checks.finding import Finding, fail, ok, skip, warn
from spotwatch.checks.limits import in_thread, told
from spotwatch.checks.machine import Machine, Owner, groups_of
from spotwatch.config_places import closed_folder, is_writable
from spotwatch.errors import ConfigError, HandshakeError
from spotwatch.handshake import NOTICES_DIR, STATUS_DIR
from spotwatch.rundir import check_runtime_dir, choose_access
from spotwatch.safe_files import create_exclusively

_WRITE_AND_SEARCH = 0o3
ENOUGH_BYTES = 16 * 1024 * 1024
SCRATCH = b" " * 512
"""As much as an order: a file system that is full still takes an empty file."""
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""link(2): what a file system without hard links answers."""
SUDO = "run the check as the daemon's user, with sudo"
_RUNTIME_MEND = "run the daemon as its owner or as root, or set runtime_dir to a place of its own"


def scratch_name(prefix: str = "check") -> str:
    """Return a name that no trainer looks for and nobody else has."""
    return f".spotwatch-{prefix}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def hidden(path: Path) -> str:
    """Return why this user could not read `path`, which may be there and sound all the same; or nothing."""
    closed = closed_folder(path)
    if closed is not None:
        return f"{closed} is closed to uid {os.geteuid()}"
    if os.path.lexists(path) and not path.is_symlink() and not os.access(path, os.R_OK):
        return f"{path} is not readable for uid {os.geteuid()}"
    return ""


def may_write(folder: os.stat_result, uid: int, gids: frozenset[int]) -> bool:
    """Tell from its mode whether a user may make and remove files in a directory."""
    if uid == 0:
        return True
    mode = folder.st_mode
    if folder.st_uid == uid:
        bits = mode >> 6
    elif folder.st_gid in gids:
        bits = mode >> 3
    else:
        bits = mode
    return bits & _WRITE_AND_SEARCH == _WRITE_AND_SEARCH


async def ask_places(machine: Machine) -> list[Finding]:
    """Return the lines about both directories."""
    owner = await machine.trainer_owner()
    daemon = await machine.daemon()
    runtime_dir, state_dir = machine.settings.runtime_dir, machine.settings.state_dir
    is_named = machine.named_owner is not None
    groups = await machine.trainer_groups()
    findings = await told(
        judge_runtime_dir, runtime_dir, owner, daemon=daemon, is_owner_named=is_named, groups=groups
    )
    warning = next((line for line in machine.loaded.warnings if line.startswith("state_dir: ")), "")
    return [*findings, await in_thread(judge_state_dir, state_dir, warning)]


def judge_runtime_dir(
    path: Path,
    owner: Owner | None,
    *,
    daemon: int | None,
    is_owner_named: bool,
    groups: frozenset[int] | None = None,
) -> Iterator[Finding]:
    """Yield whether the runtime directory is safe, ours to write, and open to the trainer.

    Args:
        path: the directory.
        owner: uid and gid of the trainer; None: unknown.
        daemon: the pid of the daemon that has prepared it; None: none has.
        is_owner_named: the owner is set in the configuration.
        groups: that the trainer is in; None: those of its user.
    """
    name = "runtime_dir"
    if not os.path.lexists(path):
        yield _judge_absent(path)
        return
    access = choose_access(owner, uid=os.geteuid(), is_owner_named=is_owner_named)
    folders = [path, *(path / part for part in (STATUS_DIR, NOTICES_DIR))]
    problems: list[str] = []
    for folder in folders:
        if folder == path or os.path.lexists(folder):
            try:
                check_runtime_dir(folder, uids=access.uids)
            except ConfigError as error:
                problems += error.problems
    for problem in problems:
        found, _, mend = problem.removeprefix("runtime_dir: ").partition("; ")
        yield fail(name, found, mend or f"remove it, or set runtime_dir; it was {path}")
    if problems:
        return
    facts = path.stat()
    yield _judge_writing(path, facts, daemon)
    status = path / STATUS_DIR
    if owner is not None and os.path.isdir(status):  # noqa: PTH112 - Path's raises where we may not search
        theirs = status.stat()
        will_be_mended = daemon is None and os.geteuid() in (0, theirs.st_uid)
        members = groups_of(owner) if groups is None else groups
        if not may_write(theirs, owner[0], members) and not will_be_mended:
            yield fail(
                "runtime_dir.status",
                f"{status} ({_shown(theirs)}): the trainer (uid {owner[0]}) may not write there, so no save "
                "of its is heard of",
                explain_group(theirs, owner),
            )


def _judge_absent(path: Path) -> Finding:
    name = "runtime_dir"
    if is_hidden := hidden(path):
        return fail(name, f"{path} is out of reach: {is_hidden}", f"{SUDO}, or set runtime_dir")
    if is_writable(path):
        return ok(name, f"{path} is not there yet; the daemon makes it")
    return fail(name, f"{path} is not there and cannot be made", _RUNTIME_MEND)


def _judge_writing(path: Path, facts: os.stat_result, daemon: int | None) -> Finding:
    name = "runtime_dir"
    scratch = path / scratch_name()
    try:
        create_exclusively(scratch, SCRATCH)
    except HandshakeError as error:
        number = error.__cause__.errno if isinstance(error.__cause__, OSError) else None
        if number == errno.EACCES and os.geteuid() != 0 and daemon is not None:
            return skip(name, f"{path} is the running daemon's, not ours to try", "run the check with sudo")
        return fail(name, f"{path}: {error}", explain_write(number))
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()
    return ok(name, f"{path}, {_shown(facts)}, writable by us")


def explain_write(number: int | None) -> str:
    """Return how to mend a directory in which no flag could be made, by the number of the error."""
    if number in _NO_LINKS:
        return "its file system has no hard links, by which a flag appears whole: use a tmpfs, as /run is"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "it is full: make room"
    if number == errno.EROFS:
        return "its file system is read-only: set runtime_dir, or ReadWritePaths= in the daemon's unit"
    return _RUNTIME_MEND


def judge_state_dir(path: Path | None, warning: str = "") -> Finding:
    """Return whether what happened will be known after a restart; `warning` says why there is no place."""
    name = "state_dir"
    if path is None:
        mend = "make /var/lib/spotwatch writable for the daemon, or set state_dir"
        return warn(name, warning.removeprefix("state_dir: ") or "no place is writable: memory only", mend)
    if not os.path.lexists(path):
        if is_hidden := hidden(path):
            return skip(name, f"{path} is out of reach: {is_hidden}", SUDO)
        return ok(name, f"{path} is not there yet; the daemon makes it")
    scratch = path / scratch_name()
    try:
        create_exclusively(scratch, SCRATCH, mode=0o600)
    except HandshakeError as error:
        return fail(name, str(error), "let the daemon's user own it, or set state_dir")
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()
    free_bytes = shutil.disk_usage(path).free
    if free_bytes < ENOUGH_BYTES:
        return warn(name, f"{path} has {free_bytes // 1024} KiB left", "make room: the journal is kept there")
    return ok(name, f"{path}, writable by us")


def explain_group(folder: os.stat_result, owner: Owner) -> str:
    """Return how to let the trainer into a directory that its users share by group."""
    if folder.st_mode & stat.S_IWGRP and folder.st_gid != 0:
        try:
            group = grp.getgrgid(folder.st_gid).gr_name
        except KeyError:
            group = str(folder.st_gid)
        return f"put the trainer into group {group}: SupplementaryGroups={group} in its unit; restart it"
    return f'set flag.owner = "{owner[0]}:{owner[1]}", and restart the daemon as root'


def _shown(facts: os.stat_result) -> str:
    return f"uid {facts.st_uid}, gid {facts.st_gid}, mode {stat.S_IMODE(facts.st_mode):04o}"
