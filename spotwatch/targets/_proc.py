# SPDX-License-Identifier: Apache-2.0
"""Processes as /proc shows them, and their identity.

A pid is only a number that the kernel gives away again; a process is its pid and its start time together.
It signals nobody (`_send`), and chooses nobody (`_choice`). Standard library only.
"""

from __future__ import annotations

import os
import select
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from spotwatch.model import JSON

MAX_COMMAND = 4096
"""Characters of a command line that count; the rest of a longer one is not compared."""
HIDDEN = 0
"""The start time of a process that systemd names and /proc does not show us."""
# include/linux/sched.h: PF_KTHREAD, the flag of a thread that belongs to the kernel.
_PF_KTHREAD = 0x00200000
# include/linux/sched.h: PF_EXITING, on the way out; no handler runs any more, memory is being given back.
_PF_EXITING = 0x00000004
_GONE_STATES = frozenset("ZXx")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proc:
    """The identity of one process: never a bare pid."""

    pid: int
    start_ticks: int
    """Clock ticks since boot (proc_pid_stat(5), field 22)."""
    uid: int
    """Effective: what its files belong to."""
    gid: int
    command: str
    """Arguments joined by blanks, at most `MAX_COMMAND` characters."""

    def to_json(self) -> dict[str, JSON]:
        """Return this identity as JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Proc:
        """Return the identity that `to_json` wrote.

        Raises:
            KeyError, ValueError, TypeError: a field is missing or has a wrong form.
        """
        numbers = {name: int(row[name]) for name in ("pid", "start_ticks", "uid", "gid")}
        return cls(**numbers, command=str(row["command"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one look at /proc tells about a process."""

    proc: Proc
    ppid: int
    state: str
    comm: str
    argv: tuple[str, ...]
    is_kernel: bool = False
    is_exiting: bool = False
    """It is on its way out: a signal changes nothing any more, though what it holds is not free yet."""
    is_thread: bool = False
    """The number is that of a thread, not of a process."""
    inner_pid: int = 0
    """By which number it knows itself in a PID namespace below ours; 0: it lives in ours."""
    caught: int = 0
    """Bit n - 1 is set while it has a handler of its own for signal n (proc_pid_status(5), SigCgt)."""

    def catches(self, signum: int) -> bool:
        """Tell whether it has a handler of its own for `signum`."""
        return bool(self.caught >> (signum - 1) & 1)

    @property
    def is_nested(self) -> bool:
        """Tell whether it lives in a PID namespace below ours, as in a container."""
        return self.inner_pid > 0

    @property
    def pid(self) -> int:
        """Return the number by which this namespace knows it."""
        return self.proc.pid

    @property
    def is_gone(self) -> bool:
        """Tell whether it has exited and only waits to be reaped."""
        return self.state in _GONE_STATES


def read_row(pid: int) -> Row | None:
    """Return what /proc says about `pid` now; None when there is no such process or thread."""
    try:
        stat = _read(pid, "stat")
        status = _read(pid, "status")
        cmdline = _read(pid, "cmdline")
    except OSError:
        return None
    facts = _status_fields(status)
    # The name may hold blanks and parentheses (`a) R 1 (x`): only after the last one do fields count.
    head, _, tail = stat.rpartition(")")
    fields = tail.split()
    try:
        argv = tuple(cmdline.rstrip("\0").split("\0")) if cmdline.strip("\0") else ()
        return Row(
            proc=Proc(
                pid=pid,
                start_ticks=int(fields[19]),
                uid=int(facts["Uid"].split()[1]),
                gid=int(facts["Gid"].split()[1]),
                command=" ".join(argv)[:MAX_COMMAND],
            ),
            ppid=int(fields[1]),
            state=fields[0],
            comm=head.partition("(")[2],
            argv=argv,
            is_kernel=bool(int(fields[6]) & _PF_KTHREAD),
            is_exiting=bool(int(fields[6]) & _PF_EXITING),
            is_thread=int(facts.get("Tgid", pid)) != pid,
            inner_pid=int(["0", *facts.get("NSpid", "").split()[1:]][-1]),
            caught=int(facts.get("SigCgt", "0"), 16),
        )
    except (KeyError, IndexError, ValueError):
        # The process ended between two reads, and the files were cut short.
        return None


def read_table() -> dict[int, Row]:
    """Return every process that we may see, by pid."""
    pids = [int(name) for name in os.listdir("/proc") if name.isascii() and name.isdigit()]  # noqa: PTH208 - names, not paths
    rows = (read_row(pid) for pid in pids)
    return {row.pid: row for row in rows if row is not None}


def read_variable(pid: int, name: str) -> str | None:
    """Return a variable of `pid`'s first environment; None: not set, or not for us to see."""
    try:
        text = _read(pid, "environ")
    except OSError:
        return None
    for entry in text.split("\0"):
        key, _, value = entry.partition("=")
        if key == name:
            return value
    return None


def read_groups(pid: int) -> frozenset[int] | None:
    """Return every group that `pid` is in, by number; None: it is gone, or hidden from us."""
    try:
        facts = _status_fields(_read(pid, "status"))
        return frozenset(int(number) for name in ("Gid", "Groups") for number in facts[name].split())
    except (OSError, KeyError):
        return None


def is_alive(proc: Proc) -> bool:
    """Tell whether this very process still runs: same pid, same start time, no zombie."""
    if proc.start_ticks == HIDDEN:
        return _runs(proc.pid)
    row = read_row(proc.pid)
    return row is not None and row.proc.start_ticks == proc.start_ticks and not row.is_gone


def _runs(pid: int) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # pidfd_open(2): readable once the process has terminated.
        return not select.select([handle], [], [], 0)[0]
    finally:
        os.close(handle)


def has_pending(proc: Proc, signum: int) -> bool:
    """Tell whether `signum` was sent to this very process and has not been taken yet."""
    try:
        facts = _status_fields(_read(proc.pid, "status"))
    except OSError:
        return False
    masks = int(facts.get("SigPnd", "0"), 16) | int(facts.get("ShdPnd", "0"), 16)
    return bool(masks >> (signum - 1) & 1) and is_alive(proc)


def _read(pid: int, name: str) -> str:
    with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123 - a scan opens thousands; Path doubles its cost
        return file.read().decode(errors="backslashreplace")


def _status_fields(text: str) -> dict[str, str]:
    return {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
