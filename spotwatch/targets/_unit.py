# SPDX-License-Identifier: Apache-2.0
"""A trainer that runs as a systemd unit, stopped by systemd's own job.

systemd sends the unit's KillSignal= to whom KillMode= says and waits TimeoutStopSec=; the settings `signal`
and `leaves = "auto"` have no say there. With `leaves = "always"` there is no stop job: the ranks below the
main process are signalled directly, for launchers whose own limit is shorter than a save. It does not judge
the unit's settings.
"""

from __future__ import annotations

import asyncio
import grp
import pwd
import signal
from collections.abc import Mapping
from pathlib import Path

from spotwatch.errors import ActionError
from spotwatch.targets._choice import Leaves, choose
from spotwatch.targets._obstacles import explain_end, load_problem, verb_problem
from spotwatch.targets._proc import HIDDEN, Proc, Row, read_row, read_table
from spotwatch.targets._process import ProcessTarget
from spotwatch.targets._send import refusal
from spotwatch.targets._systemd import UnitFacts, systemctl, unit_facts, unit_name

_BETWEEN_STARTS = "auto-restart"
_SELF_CGROUP = Path("/proc/self/cgroup")


class UnitFinder:
    """The trainer is a unit's main process.

    Args:
        unit: the full name of a service.
    """

    def __init__(self, unit: str) -> None:
        self._unit = unit

    def heads(self, table: Mapping[int, Row]) -> tuple[Row, ...]:
        """Return the main process, as systemd names it now; blocks for up to 2 s."""
        return (self.head(running_facts(self._unit), table),)

    def head(self, facts: UnitFacts, table: Mapping[int, Row]) -> Row:
        """Return the main process that `facts` name.

        Raises:
            ActionError: it has exited, or must never be told.
        """
        # systemd may have started it after our look at all processes.
        row = table.get(facts.main_pid) or read_row(facts.main_pid)
        if row is None:
            # ProtectProc=invisible on the daemon: systemd still stops what we cannot see.
            uid, gid = _account(facts) or (-1, -1)
            hidden = Proc(pid=facts.main_pid, start_ticks=HIDDEN, uid=uid, gid=gid, command="")
            return Row(proc=hidden, ppid=0, state="?", comm="", argv=())
        if row.is_gone:
            raise ActionError(f"unit {self._unit}: main process {row.pid} has exited")
        if reason := refusal(row):
            raise ActionError(f"unit {self._unit}: main process {row.pid} is never told: {reason}")
        return row

    def matches(self, row: Row) -> bool:
        """Return False: a unit's name says nothing about its children."""
        del row
        return False

    def start(self) -> str:
        """Queue a start job; a unit that runs is left alone by systemd."""
        systemctl("start", "--no-block", "--", self._unit)
        return f"unit {self._unit}: start queued"


class UnitTarget:
    """A trainer that systemd stops and starts.

    Args:
        unit: the service's name; `.service` may be left out.
        signum: sent to the ranks where `leaves` is `always`, otherwise unused.
        leaves: `always` signals those below the main process instead of asking systemd.

    Raises:
        ConfigError: `unit` cannot be the name of a service.
    """

    def __init__(
        self, unit: str, *, signum: signal.Signals = signal.SIGTERM, leaves: Leaves = "auto"
    ) -> None:
        self.unit = unit_name(unit)
        self.label = f"unit {self.unit}"
        self.signum = signum if leaves == "always" else signal.SIGTERM
        self._leaves: Leaves = leaves
        self._finder = UnitFinder(self.unit)
        self._ranks = ProcessTarget(self.label, self._finder, signum=signum, leaves=leaves)

    def find(self) -> tuple[Proc, ...]:
        """Return the processes that a stop is for; blocks for up to 2 s, as systemd is asked.

        Raises:
            ActionError: the unit is unknown, not running, restarting, or contains this daemon.
        """
        if self._leaves == "always":
            return self._ranks.find()
        table = read_table()
        (head,) = self._finder.heads(table)
        try:
            return tuple(row.proc for row in choose(head, table, self._leaves))
        except ActionError:
            # A shell between two commands, a launcher before its ranks: systemd stops them all the same.
            return (head.proc,)

    def owner(self) -> tuple[int, int] | None:
        """Return uid and gid of the main process, or those of User= and Group=; blocks for up to 2 s."""
        try:
            facts = unit_facts(self.unit)
        except ActionError:
            return None
        row = read_row(facts.main_pid) if facts.main_pid else None
        if row is not None:
            return row.proc.uid, row.proc.gid
        return _account(facts) if facts.load_state == "loaded" else None

    def obstacle(self) -> str:
        """Return what keeps a stop from reaching the unit however it runs; blocks for up to 6 s."""
        if self._leaves == "always":
            return ""
        try:
            return load_problem(unit_facts(self.unit)) or verb_problem(self.unit)
        except ActionError as error:
            return str(error)

    def is_down(self) -> bool:
        """Tell whether systemd says that the unit is at rest; blocks for up to 2 s."""
        try:
            facts = unit_facts(self.unit)
        except ActionError:
            return False
        return facts.load_state == "loaded" and facts.active_state in ("inactive", "failed")

    def is_restarting(self) -> bool:
        """Tell whether the unit has ended and systemd is about to start it again; blocks for up to 2 s."""
        try:
            return unit_facts(self.unit).sub_state.startswith(_BETWEEN_STARTS)
        except ActionError:
            return False

    async def stop(self, procs: tuple[Proc, ...]) -> str:
        """Queue systemd's stop job without waiting for its end, and say so.

        Raises:
            ActionError: systemd did not take it within 2 s, or refused.
        """
        if self._leaves == "always":
            return await self._ranks.stop(procs)
        await asyncio.to_thread(systemctl, "stop", "--no-block", "--", self.unit)
        return f"{self.label}: stop queued"

    async def start(self) -> str:
        """Queue a start job and say so.

        Raises:
            ActionError: systemd did not take it within 2 s, or refused.
        """
        return await asyncio.to_thread(self._finder.start)


def running_facts(unit: str) -> UnitFacts:
    """Return what systemd says about a unit that runs and is not ours.

    Raises:
        ActionError: it is unknown, not running, restarting, or contains this daemon.
    """
    facts = unit_facts(unit)
    state = f"{facts.active_state} ({facts.sub_state})"
    if problem := load_problem(facts):
        raise ActionError(problem)
    if facts.sub_state.startswith(_BETWEEN_STARTS):
        raise ActionError(f"unit {unit} is restarting{explain_end(facts)}")
    if facts.main_pid == 0:
        raise ActionError(f"unit {unit} has no main process, it is {state}{explain_end(facts)}")
    if facts.control_group and _is_our_cgroup(facts.control_group):
        raise ActionError(f"unit {unit} contains this daemon, and stopping it would stop us")
    return facts


def _is_our_cgroup(path: str) -> bool:
    try:
        lines = _SELF_CGROUP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    # cgroups(7): hierarchy:controllers:path; systemd's own is 0:: or name=systemd.
    ours = {line.split(":", 2)[-1] for line in lines if line.startswith("0::") or ":name=systemd:" in line}
    return any(own == path or own.startswith(f"{path}/") for own in ours)


def _account(facts: UnitFacts) -> tuple[int, int] | None:
    """Return uid and gid of User= and Group=; None when the system does not know them (DynamicUser=)."""
    name = facts.user or "root"
    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
        if not facts.group:
            return entry.pw_uid, entry.pw_gid
        gid = int(facts.group) if facts.group.isdigit() else grp.getgrnam(facts.group).gr_gid
    except KeyError:
        return None
    return entry.pw_uid, gid
