# SPDX-License-Identifier: Apache-2.0
"""The flag, the least that a trainer knows: can we make it, can the trainer see it and take it away?

It is tried with a scratch name beside the real one, as the trainer's user where we may become that user; the
real flag is only looked at.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from spotwatch.actions.handshake import FlagState, HandshakeAction
from spotwatch.checks.finding import Finding, fail, ok, skip, warn
from spotwatch.checks.limits import in_thread
from spotwatch.checks.machine import Machine, Owner, groups_of
from spotwatch.checks.places import (
    SCRATCH,
    SUDO,
    explain_group,
    explain_write,
    hidden,
    may_write,
    scratch_name,
)
from spotwatch.errors import HandshakeError
from spotwatch.safe_files import create_exclusively
from spotwatch.targets import Proc
from spotwatch.targets._proc import HIDDEN, read_variable

_REMOVE_SECONDS = 2.0
_HOME_MEND = "leave flag.path out, so that the flag is in runtime_dir"


async def ask_flag(machine: Machine) -> list[Finding]:
    """Return the lines about the flag."""
    trainer, given = await machine.trainer_owner(), await machine.flag_owner()
    daemon, groups = await machine.daemon(), await machine.trainer_groups()
    looks = await machine.known_targets()
    procs = [proc for look in looks for proc in look.procs]
    flag, runtime_dir, boot_id = machine.flag, machine.settings.runtime_dir, machine.clock.boot_id

    def look() -> list[Finding]:
        if is_hidden := hidden(flag):
            return [skip("flag", f"{flag} cannot be tried: {is_hidden}", SUDO)]
        return [
            *judge_pending(runtime_dir, flag, boot_id),
            *judge_flag(
                flag,
                trainer=trainer,
                given=given,
                is_made_later=_is_made_later(machine, daemon),
                groups=groups,
            ),
            *judge_sight(flag.parent, runtime_dir, procs, daemon),
        ]

    return await in_thread(look)


def _is_made_later(machine: Machine, daemon: int | None) -> bool:
    """Tell whether the daemon will first give the flag's directory its group and mode."""
    return daemon is None and machine.flag.parent == machine.settings.runtime_dir


def judge_pending(runtime_dir: Path, flag: Path, boot_id: str) -> Iterator[Finding]:
    """Yield what lies at the flag's own path."""
    name = "flag.pending"
    action = HandshakeAction(runtime_dir, os.fspath(flag), boot_id=boot_id, owner=lambda: None)
    match action.flag_state():
        case FlagState.BLOCKED:
            yield fail(name, f"{flag} is no regular file, so that no flag can appear", "remove it")
        case FlagState.OURS:
            yield warn(
                name,
                f"{flag} is there: a save is asked for and not acknowledged",
                f"see whether the trainer looks at it; else remove {flag}",
            )
        case FlagState.FOREIGN:
            yield warn(
                name,
                f"{flag} is there, and not ours: no new one can appear before it is gone",
                f"remove {flag}, unless you made it just now",
            )
        case FlagState.ABSENT:
            return


def judge_flag(
    flag: Path,
    *,
    trainer: Owner | None,
    given: Owner | None,
    is_made_later: bool,
    groups: frozenset[int] | None = None,
) -> Iterator[Finding]:
    """Yield whether a flag can be made there, and be removed by the trainer.

    Args:
        flag: its path.
        trainer: uid and gid of the trainer; None: unknown.
        given: whom the flag will be given to, if we are root.
        is_made_later: the daemon prepares the directory before its first flag.
        groups: that the trainer is in; None: those of its user.
    """
    folder = flag.parent
    if not folder.is_dir():
        if is_made_later:
            yield skip("flag.create", f"{folder} is not there yet; the daemon makes it")
        else:
            yield fail("flag.create", f"there is no directory {folder}", f"make it, or {_HOME_MEND}")
        return
    scratch = folder / scratch_name("flag")
    is_root = os.geteuid() == 0
    try:
        create_exclusively(scratch, SCRATCH, owner=given if is_root else None)
    except HandshakeError as error:
        number = error.__cause__.errno if isinstance(error.__cause__, OSError) else None
        yield fail("flag.create", str(error), explain_write(number))
        return
    try:
        yield ok("flag.create", f"{flag} can be made")
        members = groups_of(trainer) if groups is None and trainer is not None else groups or frozenset()
        yield _judge_removal(scratch, flag, trainer, members, is_made_later=is_made_later)
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()


def _judge_removal(
    scratch: Path, flag: Path, trainer: Owner | None, groups: frozenset[int], *, is_made_later: bool
) -> Finding:
    name = "flag.remove"
    folder, ours = flag.parent.stat(), os.geteuid()
    if trainer is None:
        if folder.st_mode & stat.S_ISVTX and ours == 0:
            said = f"{flag.parent} is sticky and the trainer's user unknown: only root could remove the flag"
            return warn(name, said, f"set flag.owner to the trainer's user, or {_HOME_MEND}")
        return skip(name, "the trainer's user is unknown", "name a target, or set flag.owner")
    uid = trainer[0]
    if uid == ours:
        return ok(name, "the trainer runs as the same user as we")
    if is_made_later and ours in (0, folder.st_uid) and not folder.st_mode & stat.S_ISVTX:
        return skip(name, f"the daemon opens {flag.parent} to the trainer (uid {uid}) when it starts")
    can_remove = _try_removal(scratch, trainer, groups) if ours == 0 else None
    if can_remove is None:
        can_remove = may_remove(folder, scratch.lstat().st_uid, uid, groups)
    if can_remove:
        return ok(name, f"the trainer (uid {uid}) can remove it")
    said = f"the trainer (uid {uid}) could not remove it from {flag.parent}, and would save again and again"
    if folder.st_mode & stat.S_ISVTX:
        mend = f'set flag.owner = "{uid}:{trainer[1]}" and run the daemon as root, or {_HOME_MEND}'
    else:
        mend = explain_group(folder, trainer)
    return fail(name, said, mend)


def may_remove(folder: os.stat_result, file_uid: int, uid: int, gids: frozenset[int]) -> bool:
    """Tell from modes whether user `uid` may remove a file of `file_uid`. Source: unlink(2), EPERM."""
    is_sticky = bool(folder.st_mode & stat.S_ISVTX)
    return may_write(folder, uid, gids) and (not is_sticky or uid in (0, file_uid, folder.st_uid))


def _try_removal(scratch: Path, trainer: Owner, groups: frozenset[int]) -> bool | None:
    """Remove `scratch` as the trainer's user, and tell whether that worked; None: it could not be tried."""
    uid, gid = trainer
    try:
        subprocess.run(  # noqa: S603 - an argument list; the name is ours
            ["rm", "-f", "--", os.fspath(scratch)],  # noqa: S607 - wherever the system has it
            user=uid,
            group=gid,
            extra_groups=sorted(groups),
            cwd="/",
            env={"PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_REMOVE_SECONDS,
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return not os.path.lexists(scratch)


def judge_sight(
    folder: Path, runtime_dir: Path, procs: Sequence[Proc], daemon: int | None
) -> Iterator[Finding]:
    """Yield where the trainer or the daemon sees another directory under the same name, or looks elsewhere.

    Args:
        folder: the flag's directory.
        runtime_dir: the daemon's.
        procs: of the trainer.
        daemon: its pid; 0 or None: unknown.
    """
    name = "flag.seen"
    pids = [("the trainer", proc.pid) for proc in procs if proc.start_ticks != HIDDEN]
    pids += [("the daemon", daemon)] if daemon else []
    checked, are_same = 0, True
    for who, pid in pids:
        for place in dict.fromkeys((folder, runtime_dir)):
            is_same = _is_same_place(place, pid)
            checked += is_same is not None
            if is_same is False:
                are_same = False
                said = f"{who} (pid {pid}) sees another {place} than we: PrivateTmp= or a container"
                mend = f"{_HOME_MEND}; in a container, mount {runtime_dir} into it"
                yield fail(name, said, mend)
        wanted = read_variable(pid, "SPOTWATCH_RUNTIME_DIR") if who == "the trainer" else None
        if wanted and Path(wanted) != runtime_dir:
            are_same = False
            said = f"the trainer (pid {pid}) looks in {wanted}, the daemon writes in {runtime_dir}"
            yield fail(
                name, said, "set both to the same: runtime_dir, and SPOTWATCH_RUNTIME_DIR for the trainer"
            )
    if checked and are_same:
        yield ok(name, f"{', '.join(dict.fromkeys(who for who, _ in pids))} and we see the same {folder}")


def _is_same_place(place: Path, pid: int) -> bool | None:
    """Compare a directory with what `pid` sees under its name; None where it is missing or hidden."""
    try:
        ours = place.stat()
    except OSError:
        return None
    try:
        theirs = Path(f"/proc/{pid}/root{place}").stat()
    except FileNotFoundError:
        return False if Path(f"/proc/{pid}").exists() else None
    except OSError:
        return None
    return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)
