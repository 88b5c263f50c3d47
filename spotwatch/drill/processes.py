# SPDX-License-Identifier: Apache-2.0
"""Every process that belongs to a rehearsed machine, whatever it forked, and how all of them end.

It starts none. A process belongs if it carries the machine's mark in its environment, lives in a session that
the machine began, or descends from one that belongs. One that does none of these three has fled.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from spotwatch.errors import SpotwatchError

VARIABLE = "DRILL_MACHINE"
_PATIENCE_SECONDS = 5.0
_PROC = Path("/proc")


def members(mark: str, sessions: Collection[int]) -> set[int]:
    """Return the pids of the live processes of the machine `mark`.

    Args:
        mark: the value of `VARIABLE` there.
        sessions: those that the machine began.
    """
    wanted = f"{VARIABLE}={mark}".encode()
    parents: dict[int, int] = {}
    found: set[int] = set()
    for pid in _pids():
        facts = _facts(pid)
        if facts is None:
            continue
        parents[pid], session = facts
        if session in sessions or wanted in _environment(pid):
            found.add(pid)
    grown = True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in found} - found
        grown = bool(children)
        found |= children
    return found - {os.getpid()}


def kill_all(mark: str, sessions: Collection[int]) -> int:
    """Send SIGKILL to every process of a machine until none is left, and return how many there were.

    Raises:
        SpotwatchError: some are still there after five seconds.
    """
    killed: set[int] = set()
    give_up_at = time.monotonic() + _PATIENCE_SECONDS
    while left := members(mark, sessions):
        if time.monotonic() > give_up_at:
            raise SpotwatchError(f"processes {sorted(left)} survive SIGKILL; end them by hand")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                _kill(pid, mark, sessions)
        killed |= left
        time.sleep(0.005)
    return len(killed)


def _kill(pid: int, mark: str, sessions: Collection[int]) -> None:
    fd = os.pidfd_open(pid)
    try:
        # The number may have been given away since the look; the descriptor cannot be.
        if pid in members(mark, sessions):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    finally:
        os.close(fd)


def _pids() -> Iterator[int]:
    for name in os.listdir(_PROC):  # noqa: PTH208 - numbers, not paths, are wanted
        if name.isdigit():
            yield int(name)


def _facts(pid: int) -> tuple[int, int] | None:
    """Return parent and session; None when the process is gone or a zombie."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name may hold blanks and brackets: the fields begin after the last one (proc_pid_stat(5)).
    state, parent, _, session, *_ = text.rpartition(")")[2].split()
    return None if state in ("Z", "X") else (int(parent), int(session))


def _environment(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
