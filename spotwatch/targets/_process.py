# SPDX-License-Identifier: Apache-2.0
"""Targets that are told by a signal: the child of `exec`, the owner of a pidfile, what a pattern matches.

Each knows how to find the head of the trainer's family; who in that family is told is `_choice`'s matter, and
how the signal is sent `_proc`'s. No settings are checked here. Standard library only.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from spotwatch.errors import ActionError, HandshakeError
from spotwatch.handshake import read_small_file
from spotwatch.targets._choice import Leaves, choose, is_bystander, is_helper, is_likely
from spotwatch.targets._proc import Proc, Row, check_signallable, read_table, refusal, send_signal

MAX_PIDFILE_BYTES = 64
# How much later than its pidfile a process may seem to have started: both are rounded by the kernel.
_PIDFILE_SLACK_SECONDS = 1.0


class Spawned(Protocol):
    """A trainer that this daemon started itself."""

    @property
    def pid(self) -> int | None:
        """Return the pid of the running process; None between its end and the next start."""

    def respawn(self) -> None:
        """Start it again with the same command.

        Raises:
            ActionError: it cannot be started.
        """


class Finder(Protocol):
    """A way to find the head, or the heads, of the trainer's family."""

    def heads(self, table: Mapping[int, Row]) -> tuple[Row, ...]:
        """Return at least one process out of `table`.

        Raises:
            ActionError: there is none, or it is not to be trusted.
        """

    def matches(self, row: Row) -> bool:
        """Tell whether the user's own words fit `row`, to choose between a wrapper's children."""

    def start(self) -> str:
        """Start again what can be, and say what was done; empty when nothing can."""


class ProcessTarget:
    """A trainer told by `signum`, through a handle that cannot come to mean another process.

    Args:
        label: how the target is called in log and status.
        finder: finds the head of the family.
        signum: what is sent for a stop.
        leaves: whether the head itself is told, or who is below it.
        owner: uid and gid of the trainer where configuration names them.
    """

    def __init__(
        self,
        label: str,
        finder: Finder,
        *,
        signum: signal.Signals = signal.SIGTERM,
        leaves: Leaves = "auto",
        owner: tuple[int, int] | None = None,
    ) -> None:
        self.label = label
        self.signum = signum
        self._finder = finder
        self._leaves = leaves
        self._owner = owner

    def find(self) -> tuple[Proc, ...]:
        """Return the processes to tell now, in order of pid; never an empty tuple.

        Raises:
            ActionError: the trainer is missing, restarting, someone else's, or may not be signalled.
        """
        table = read_table()
        found: dict[int, Proc] = {}
        problems: list[str] = []
        for head in self._finder.heads(table):
            try:
                for row in choose(head, table, self._leaves, self._finder.matches):
                    if reason := refusal(row):
                        raise ActionError(f"pid {row.pid} is not signalled: {reason}")
                    check_signallable(row.proc)
                    found[row.pid] = row.proc
            except ActionError as error:
                problems.append(str(error))
        if not found:
            raise ActionError(f"{self.label}: {'; '.join(problems)}")
        procs = tuple(found[pid] for pid in sorted(found))
        self._owner = self._owner or (procs[0].uid, procs[0].gid)
        return procs

    def owner(self) -> tuple[int, int] | None:
        """Return uid and gid of the trainer, also while it is away once it has been seen; None: unknown."""
        if self._owner is None:
            try:
                self.find()
            except ActionError:
                return None
        return self._owner

    async def stop(self, procs: tuple[Proc, ...]) -> str:
        """Signal each of `procs` that still is what was found, and say so in a few words.

        Raises:
            ActionError: one could not be told; the others were.
        """
        told: list[str] = []
        gone: list[str] = []
        problems: list[str] = []
        for proc in procs:
            try:
                (told if send_signal(proc, self.signum) else gone).append(str(proc.pid))
            except ActionError as error:
                problems.append(str(error))
        said = [f"{self.signum.name} to pid {', '.join(told)}"] if told else []
        if gone:
            said.append(f"pid {', '.join(gone)} already gone")
        if problems:
            raise ActionError(f"{self.label}: {'; '.join(problems + said)}")
        return f"{self.label}: {', '.join(said)}"

    async def start(self) -> str:
        """Start again what was stopped, and say so; empty when this kind of target cannot be started.

        Raises:
            ActionError: it did not start.
        """
        return self._finder.start()


class ChildFinder:
    """The trainer is this daemon's own child."""

    def __init__(self, child: Spawned) -> None:
        self._child = child

    def heads(self, table: Mapping[int, Row]) -> tuple[Row, ...]:
        """Return the child. Its pid is ours until we have reaped it, so that nothing need be compared."""
        row = table.get(self._child.pid or 0)
        if row is None or row.is_gone:
            raise ActionError("child: the trainer has exited")
        return (row,)

    def matches(self, row: Row) -> bool:
        """Return False: the command line given to `exec` says nothing about its children."""
        del row
        return False

    def start(self) -> str:
        """Start the command again unless it runs."""
        if self._child.pid is not None:
            return ""
        self._child.respawn()
        return f"child: started again as pid {self._child.pid}"


class PidfileFinder:
    """The trainer's pid is in a file, believed only where file and process agree.

    Args:
        path: the file.
        uid: whose process it must be; None: anyone's.
    """

    def __init__(self, path: Path, uid: int | None) -> None:
        self._path = path
        self._uid = uid

    def heads(self, table: Mapping[int, Row]) -> tuple[Row, ...]:
        """Return the process that the file names."""
        try:
            return (self._head(table),)
        except HandshakeError as error:
            raise ActionError(f"pidfile {self._path}: {error}") from error

    def _head(self, table: Mapping[int, Row]) -> Row:
        facts, pid = self._read()
        row = table.get(pid)
        if row is None or row.is_gone:
            raise HandshakeError(f"names pid {pid}, which does not run" + self._thread_hint(pid))
        if reason := refusal(row):
            raise HandshakeError(f"names pid {pid}, which is never signalled: {reason}")
        if self._uid is not None and row.proc.uid != self._uid:
            raise HandshakeError(
                f"names pid {pid} of uid {row.proc.uid}, expected uid {self._uid}; set `user`"
            )
        if facts.st_uid not in (0, os.geteuid(), row.proc.uid):
            raise HandshakeError(f"is owned by uid {facts.st_uid}, who is neither root, the trainer nor we")
        if row.is_nested:
            raise HandshakeError(
                f"names pid {pid}, which is numbered otherwise in its container; use `process` instead"
            )
        # The number was given away again if its process is younger than the file. Compared by age, so that
        # neither the second of boot nor its rounding matters.
        file_age = time.time() - facts.st_mtime
        process_age = time.clock_gettime(time.CLOCK_BOOTTIME) - row.proc.start_ticks / os.sysconf(
            "SC_CLK_TCK"
        )
        if file_age > process_age + _PIDFILE_SLACK_SECONDS:
            raise HandshakeError(
                f"is {file_age - process_age:.0f} s older than the process of pid {pid}: "
                "the number was reused, or the clock was set; write the file anew"
            )
        return row

    def _read(self) -> tuple[os.stat_result, int]:
        before = self._lstat()
        if stat.S_ISLNK(before.st_mode):
            raise HandshakeError("is a link; name the file itself")
        body = read_small_file(self._path, limit=MAX_PIDFILE_BYTES)
        facts = self._lstat()
        if body is None or (before.st_ino, before.st_mtime_ns) != (facts.st_ino, facts.st_mtime_ns):
            raise HandshakeError("is being replaced")
        if facts.st_mode & stat.S_IWOTH:
            raise HandshakeError("is writable by everyone; make it 0644")
        if not re.fullmatch(rb"\s*[0-9]{1,10}\s*", body) or int(body) <= 1:
            raise HandshakeError(f"holds {body[:20]!r}, expected one pid above 1")
        return facts, int(body)

    def _lstat(self) -> os.stat_result:
        try:
            return self._path.lstat()
        except OSError as error:
            raise HandshakeError(f"cannot be read: {error.strerror}") from error

    def _thread_hint(self, pid: int) -> str:
        # A thread has a folder in /proc, but is not listed there.
        return " as a process of its own: it is a thread" if Path(f"/proc/{pid}").exists() else ""

    def matches(self, row: Row) -> bool:
        """Return False: a pidfile says nothing about children."""
        del row
        return False

    def start(self) -> str:
        """Return nothing: who wrote the pidfile starts the trainer."""
        return ""


class PatternFinder:
    """The trainer is whatever command line a regular expression fits; all of several are told.

    A match below another match is a part of it. Helpers, bystanders, this daemon and what started it never
    match; where a python, a launcher or a wrapper matches, other programs do not.

    Args:
        pattern: searched for in the arguments joined by blanks.
        uid: whose processes count; None: anyone's.
    """

    def __init__(self, pattern: re.Pattern[str], uid: int | None) -> None:
        self._pattern = pattern
        self._uid = uid

    def heads(self, table: Mapping[int, Row]) -> tuple[Row, ...]:
        """Return the matching processes that are not below another one."""
        alike = [row for row in table.values() if self._is_trainer(row, table)]
        ours = [row for row in alike if self._uid in (None, row.proc.uid)]
        if not ours:
            whose = ", ".join(str(uid) for uid in sorted({row.proc.uid for row in alike}))
            hint = f" of uid {self._uid}; uid {whose} has some: set `user`" if whose else ""
            raise ActionError(f"no process matches {self._pattern.pattern!r}{hint}")
        likely = [row for row in ours if is_likely(row.argv)] or ours
        pids = {row.pid for row in likely}
        return tuple(row for row in likely if not _is_below(row, pids, table))

    def _is_trainer(self, row: Row, table: Mapping[int, Row]) -> bool:
        return (
            self.matches(row)
            and not row.is_gone
            and not is_bystander(row.argv)
            and not is_helper(row, table.get(row.ppid))
            and not refusal(row)
        )

    def matches(self, row: Row) -> bool:
        """Tell whether the pattern fits the command line."""
        return bool(row.argv) and self._pattern.search(row.proc.command) is not None

    def start(self) -> str:
        """Return nothing: a pattern does not tell how the trainer is started."""
        return ""


def _is_below(row: Row, pids: set[int], table: Mapping[int, Row]) -> bool:
    seen = {row.pid}
    above = table.get(row.ppid)
    while above is not None and above.pid not in seen:
        if above.pid in pids:
            return True
        seen.add(above.pid)
        above = table.get(above.ppid)
    return False
