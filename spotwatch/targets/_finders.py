# SPDX-License-Identifier: Apache-2.0
"""The trainer as our own child, or as whatever command line a pattern fits.

A finder returns the head of the family and signals nobody. Standard library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Protocol

from spotwatch.errors import ActionError
from spotwatch.targets._choice import is_bystander, is_helper, is_likely
from spotwatch.targets._obstacles import HIDDEN_OTHERS, sees_others
from spotwatch.targets._proc import Proc, Row, read_table, read_variable
from spotwatch.targets._send import refusal


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

    def is_away(self) -> bool:
        """Tell whether it does not run: it has left, or has not begun."""
        return self._child.pid is None

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


def left_behind() -> tuple[Proc, ...]:
    """Return what the child's family has left to us: processes whose parent has gone before them.

    Told from our hooks, which have a parent in us too, by the environment that each is given.
    """
    ours = [r for r in read_table().values() if r.ppid == os.getpid() and not r.is_gone]
    return tuple(
        r.proc
        for r in ours
        if read_variable(r.pid, "SPOTWATCH_RUNTIME_DIR")
        and read_variable(r.pid, "SPOTWATCH_OCCASION") is None
    )


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
            if self._uid != os.geteuid() and not sees_others():
                hint = f"; {HIDDEN_OTHERS}"
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
