# SPDX-License-Identifier: Apache-2.0
"""A target that is told by a signal, whatever finds it.

A finder knows the head of the trainer's family; who in that family is told is `_choice`'s matter, and how the
signal is sent `_send`'s. Nothing here is started or waited for. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from typing import Protocol

from spotwatch.errors import ActionError
from spotwatch.targets._choice import Leaves, choose
from spotwatch.targets._finders import ChildFinder
from spotwatch.targets._obstacles import HIDDEN_OTHERS, sees_others
from spotwatch.targets._proc import Proc, Row, read_table
from spotwatch.targets._send import check_signallable, refusal, send_signal


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


class PartlyToldError(ActionError):
    """Some of the processes could not be told; the others were, and need not be told again.

    Args:
        message: who could not be told, and why.
        told: those that are done with: signalled, or gone already.
    """

    def __init__(self, message: str, *, told: tuple[Proc, ...]) -> None:
        super().__init__(message)
        self.told = told


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
        self.was_found = False

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
                for row in choose(head, table, self._leaves, self._finder.matches, signum=self.signum):
                    if reason := refusal(row):
                        raise ActionError(f"pid {row.pid} is not signalled: {reason}")
                    check_signallable(row.proc)
                    found[row.pid] = row.proc
            except ActionError as error:
                problems.append(str(error))
        if not found:
            raise ActionError(f"{self.label}: {'; '.join(problems)}")
        self.was_found = True
        procs = tuple(found[pid] for pid in sorted(found))
        self._owner = self._owner or (procs[0].uid, procs[0].gid)
        return procs

    def obstacle(self) -> str:
        """Return what keeps a stop from reaching the trainer however it runs; empty where nothing does."""
        is_ours = isinstance(self._finder, ChildFinder) or (self._owner or (os.geteuid(),))[0] == os.geteuid()
        return "" if is_ours or sees_others() else f"{self.label}: {HIDDEN_OTHERS}"

    def heads(self) -> tuple[Proc, ...]:
        """Return the processes that the configuration names: a shell, a launcher, or the trainer itself.

        Raises:
            ActionError: the trainer is missing, or someone else's.
        """
        return tuple(row.proc for row in self._finder.heads(read_table()))

    def is_away(self) -> bool:
        """Tell whether there certainly is nobody to tell."""
        return isinstance(self._finder, ChildFinder) and self._finder.is_away()

    def owner(self) -> tuple[int, int] | None:
        """Return uid and gid of the trainer, also while it is away once it has been seen; None: unknown."""
        if not self.was_found:
            with contextlib.suppress(ActionError):
                self.find()
        return self._owner

    async def stop(self, procs: tuple[Proc, ...]) -> str:
        """Signal each of `procs` that still is what was found, and say so in a few words.

        Raises:
            PartlyToldError: one could not be told; the others were.
        """
        done: list[Proc] = []
        told: list[str] = []
        gone: list[str] = []
        problems: list[str] = []
        for proc in procs:
            try:
                (told if send_signal(proc, self.signum) else gone).append(str(proc.pid))
                done.append(proc)
            except ActionError as error:
                problems.append(str(error))
        said = [f"{self.signum.name} to pid {', '.join(told)}"] if told else []
        if gone:
            said.append(f"pid {', '.join(gone)} already gone")
        if problems:
            raise PartlyToldError(f"{self.label}: {'; '.join(problems + said)}", told=tuple(done))
        return f"{self.label}: {', '.join(said)}"

    async def start(self) -> str:
        """Start again what was stopped, and say so; empty when this kind of target cannot be started.

        Raises:
            ActionError: it did not start.
        """
        return self._finder.start()
