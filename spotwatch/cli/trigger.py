# SPDX-License-Identifier: Apache-2.0
"""`spotwatch trigger`: a notice by hand, which the daemon's `file` provider finds.

It tells no trainer anything itself; that is the daemon's, which may be another user's.
"""

from __future__ import annotations

import errno
import json
import os
from datetime import datetime, timedelta
from pathlib import Path

import click

from spotwatch.cli._durations import parse_duration
from spotwatch.cli._options import Options, find_runtime_dir, place_options
from spotwatch.cli._words import until
from spotwatch.clock import SystemClock
from spotwatch.config import Settings
from spotwatch.config_check import LOCK
from spotwatch.config_places import RUN, closed_folder, is_writable
from spotwatch.errors import ConfigError, HandshakeError
from spotwatch.handshake import NOTICES_DIR
from spotwatch.masking import escape
from spotwatch.model import from_rfc3339, to_rfc3339
from spotwatch.rundir import check_runtime_dir, prepare_runtime_dir
from spotwatch.runtime_lock import find_daemon
from spotwatch.safe_files import remove_if_there, write_atomically

NAME = "manual.json"
MAX_WHY_CHARACTERS = 200
_ELSEWHERE = "or name your own daemon's directory with --runtime-dir"


def read_deadline(text: str, now: datetime) -> datetime:
    """Return the moment that `2h` (from `now`) or an RFC 3339 time names.

    Raises:
        ValueError: it is neither, or has passed.
    """
    try:
        deadline = now + timedelta(seconds=parse_duration(text))
    except ValueError:
        try:
            deadline = from_rfc3339(text.strip())
        except ValueError:
            raise ValueError(
                f"{text!r} is neither a duration (90, 90s, 2m, 2h) nor a time (2026-11-29T16:00:00Z)"
            ) from None
    except OverflowError:
        raise ValueError(f"{text!r} is beyond the calendar") from None
    if deadline < now:
        raise ValueError(f"{text!r} has passed; leave --deadline out to act at once")
    return deadline


@click.command(name="trigger")
@place_options
@click.argument("what", type=click.Choice(["flush", "stop", "clear"]), metavar="flush|stop|clear")
@click.option("--deadline", metavar="2h|TIME", help="When the machine goes.  [default: at once]")
@click.option("--why", default="", metavar="TEXT", help="For the log and the trainer.")
@click.pass_context
def command(context: click.Context, options: Options, what: str, deadline: str | None, why: str) -> None:
    """Give a notice by hand: save (flush), save and exit (stop), or take it back (clear).

    \b
    Save now, go on training:            spotwatch trigger flush
    This machine goes in two hours:      spotwatch trigger stop --deadline 2h --why "host maintenance"
    Take it back:                        spotwatch trigger clear

    Exits 1 when no daemon runs; the notice is written all the same, for the next one. Where there is no time
    for two saves before the deadline, the trainer saves once and exits, at once.
    """  # noqa: D301 - click wants the character, not the two letters
    if what == "clear" and (deadline is not None or why):
        raise click.UsageError("clear takes neither --deadline nor --why")
    now = SystemClock().now()
    try:
        moment = None if deadline is None else read_deadline(deadline, now)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--deadline") from None
    if moment is not None and moment <= now:
        moment = None  # "in 0 s" is at once; a deadline of now would be missed before anybody heard of it
    runtime_dir = find_runtime_dir(options)
    _check_reachable(runtime_dir)
    pid = find_daemon(runtime_dir)
    _check_believed(runtime_dir / NOTICES_DIR, pid)
    path = runtime_dir / NOTICES_DIR / NAME
    if what == "clear":
        _clear(path, pid)
        return
    was_there = _write(path, what, moment, why)
    when = "" if moment is None else f", deadline {to_rfc3339(moment)} ({until(moment, now)})"
    click.echo(f"Wrote {path}: {what}{when}.")
    if was_there:
        click.echo("It replaces an earlier one; of two deadlines the earlier counts until `trigger clear`.")
    click.echo(_foretell(what, moment, pid, runtime_dir))
    if pid is None:
        context.exit(1)


def _check_reachable(runtime_dir: Path) -> None:
    """Refuse a place that we cannot look into, or that is most likely a slip of the pen.

    Raises:
        ConfigError: says which directory is closed or missing.
    """
    closed = closed_folder(runtime_dir / NOTICES_DIR / NAME)
    if closed is not None:
        raise ConfigError(
            f"{closed} is closed to uid {os.geteuid()}, so that no notice can be left in {runtime_dir}; "
            f"use sudo, {_ELSEWHERE}"
        )
    if not runtime_dir.parent.is_dir():
        raise ConfigError(
            f"there is no {runtime_dir.parent}, and so no daemon on {runtime_dir}; start one: spotwatch run, "
            f"{_ELSEWHERE}"
        )


def _check_believed(folder: Path, pid: int | None) -> None:
    """Refuse a folder whose files the daemon believes none of: `file` wants it root's or the daemon's own.

    Raises:
        ConfigError: it is another user's, who has put it there in place of the daemon's.
    """
    runtime_dir = folder.parent
    try:
        uid = folder.lstat().st_uid
        if pid is None:
            # The next daemon is root's, the directory's owner's or ours.
            believed = {0, runtime_dir.stat().st_uid, os.geteuid()}
        else:
            believed = {0, (runtime_dir / LOCK).lstat().st_uid}
    except OSError:
        return  # not there yet; or what is wrong is found when the notice is written
    if uid not in believed:
        raise ConfigError(
            f"{folder} was made by uid {uid}, who is neither root nor the daemon's user: no daemon believes "
            "what is in it; remove it, the daemon makes it anew"
        )


def _clear(path: Path, pid: int | None) -> None:
    try:
        was_there = remove_if_there(path)
    except HandshakeError as error:
        raise ConfigError(f"{error}; {_mend(path, error)}") from error
    if not was_there:
        click.echo(f"There was no notice by hand ({path}).")
    elif pid is None:
        click.echo(f"Removed {path}. No daemon runs here.")
    else:
        click.echo(f"Removed {path}. {_daemon(pid)} takes the notice as withdrawn in a few seconds.")


def _write(path: Path, what: str, deadline: datetime | None, why: str) -> bool:
    """Write the notice; tell whether there was one already."""
    row = {
        "do": what,
        "deadline": None if deadline is None else to_rfc3339(deadline),
        "why": escape(why, limit=MAX_WHY_CHARACTERS),
    }
    runtime_dir = path.parent.parent
    if not runtime_dir.is_symlink() and not path.parent.is_dir():
        # No daemon has been here yet: what it would make itself.
        prepare_runtime_dir(Settings(runtime_dir=runtime_dir))
    for folder in (runtime_dir, path.parent):
        check_runtime_dir(folder, uids=None)
    was_there = path.exists()
    try:
        # Readable for all: the directory decides who gets in, and the daemon may be another user.
        write_atomically(path, json.dumps(row).encode() + b"\n", mode=0o644)
    except HandshakeError as error:
        raise ConfigError(f"{error}; {_mend(path, error)}") from error
    return was_there


def _foretell(what: str, deadline: datetime | None, pid: int | None, runtime_dir: Path) -> str:
    if what == "flush":
        does = "has the trainer save and go on"
    elif deadline is None:
        does = "has the trainer save and exit at once"
    else:
        does = (
            "has the trainer save at once, and save and exit in time before the deadline (only that, and at "
            "once, where there is no time for both)"
        )
    if pid is not None:
        return f"{_daemon(pid)} sees it within a second and {does}. Take it back: spotwatch trigger clear"
    text = f"No daemon runs on {runtime_dir}, so nothing happens now; the next one {does}."
    if runtime_dir != RUN and RUN.is_dir():
        if not is_writable(RUN):
            text += f" There is a {RUN} that you may not write to: use sudo, {_ELSEWHERE}."
        elif find_daemon(RUN) is not None:
            text += f" One runs on {RUN}: name it with --runtime-dir."
    return text


def _daemon(pid: int) -> str:
    return f"The daemon (pid {pid})" if pid else "The daemon"


def _mend(path: Path, error: HandshakeError) -> str:
    """Return what to do about a notice that could not be written or removed, by the system's reason."""
    number = error.__cause__.errno if isinstance(error.__cause__, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "make room there, and give it again"
    if number == errno.EROFS:
        return f"its file system is read-only: mend that, {_ELSEWHERE}"
    if number in (errno.EACCES, errno.EPERM):
        return (
            "the daemon is another user's: use sudo, or become a member of the group of "
            f"{path.parent.parent}, {_ELSEWHERE}"
        )
    return f"see what is wrong with {path.parent}, {_ELSEWHERE}"
