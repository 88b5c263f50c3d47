# SPDX-License-Identifier: Apache-2.0
"""What several questions need to know of this machine, each looked up once, whoever asks first.

It judges nothing and changes nothing.
"""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from spotwatch.checks.limits import in_thread
from spotwatch.clock import Clock
from spotwatch.config import Settings, TargetSettings
from spotwatch.config_check import resolve_owner
from spotwatch.config_load import Loaded
from spotwatch.errors import ActionError, ConfigError
from spotwatch.handshake import Status, read_statuses
from spotwatch.journal import read_journal
from spotwatch.ledger import Ledger
from spotwatch.policy import MeasuredSave, estimate
from spotwatch.runtime_lock import find_daemon
from spotwatch.targets import Foreseeing, Proc, Target, make_targets, read_groups, unit_facts

T = TypeVar("T")
P = ParamSpec("P")
Owner = tuple[int, int]
UNIT = "spotwatch.service"
"""The daemon's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetLook:
    """One configured target, as it was found or not."""

    settings: TargetSettings
    label: str
    procs: tuple[Proc, ...] = ()
    problem: str = ""
    """Why nobody was found; empty when somebody was."""
    owner: Owner | None = None
    groups: frozenset[int] = frozenset()
    """Every group that the trainer is in, as far as its processes or its unit tell; may be empty."""
    obstacle: str = ""
    """What would keep a stop from it however it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """How long a save takes here."""

    seconds: float
    """What the daemon would reckon with, one training step included."""
    measured: int
    """Durable saves behind it; 0: it is `policy.save_seconds`."""
    unreadable: int
    """Lines of the journal that say nothing."""

    @property
    def source(self) -> str:
        """Return where `seconds` came from, for people."""
        if self.measured:
            return f"measured over {self.measured} save{'s' if self.measured > 1 else ''}"
        return "assumed, as none was measured yet (policy.save_seconds)"


class Machine:
    """This machine, as configured.

    Args:
        loaded: checked settings and where they came from.
        clock: the real one.
        environ: the environment.
        is_strange: the daemon is another user's, and most of what is its cannot be seen from here.
        is_units: it is that of spotwatch.service, where there is one.
    """

    def __init__(
        self,
        loaded: Loaded,
        clock: Clock,
        environ: Mapping[str, str],
        *,
        is_strange: bool = False,
        is_units: bool = True,
    ) -> None:
        self.loaded = loaded
        self.settings: Settings = loaded.settings
        self.clock = clock
        self.environ = environ
        self.is_strange = is_strange
        self.is_units = is_units
        self._tasks: dict[str, asyncio.Task[Any]] = {}

    @property
    def flag(self) -> Path:
        """Return the flag's path."""
        return self.settings.runtime_dir / self.settings.flag.path

    @property
    def named_owner(self) -> Owner | None:
        """Return uid and gid of `flag.owner`; None: not set."""
        return resolve_owner(self.settings.flag.owner)

    async def targets(self) -> tuple[TargetLook, ...]:
        """Return every configured target.

        Raises:
            ConfigError: one of them names nothing that can be told.
        """
        made = await self._once("targets", make_targets, self.settings.target, None)
        pairs = zip(made, self.settings.target, strict=True)
        return tuple(
            await asyncio.gather(
                *(self._once(f"target {number}", _look, *pair) for number, pair in enumerate(pairs))
            )
        )

    async def trainer_owner(self) -> Owner | None:
        """Return uid and gid under which the trainer runs, or else `flag.owner`; None: unknown."""
        found = next((look.owner for look in await self.known_targets() if look.owner is not None), None)
        return found or self.named_owner

    async def trainer_groups(self) -> frozenset[int]:
        """Return every group that the trainer is in."""
        owner = await self.trainer_owner()
        found = (look.groups for look in await self.known_targets() if look.owner == owner)
        return next((groups for groups in found if groups), groups_of(owner) if owner else frozenset())

    async def flag_owner(self) -> Owner | None:
        """Return whom the daemon would give the flag to; None: nobody, it stays the daemon's."""
        return self.named_owner or await self.trainer_owner()

    async def daemon(self) -> int | None:
        """Return the pid of the daemon here (0: unreadable); None: none runs, or it cannot be seen."""
        pid = await self._once("daemon", find_daemon, self.settings.runtime_dir)
        if pid is None and self.is_strange and self.is_units:
            return await self._once("daemon's unit", _find_main_process)
        return pid

    async def statuses(self) -> tuple[list[Status], list[str]]:
        """Return what trainers report, and a line for each file that does not count."""
        owners = {os.geteuid(), *(look.owner[0] for look in await self.known_targets() if look.owner)}
        if self.named_owner is not None:
            owners.add(self.named_owner[0])
        reading = partial(read_statuses, self.settings.runtime_dir, owners=owners)
        return await self._once("statuses", reading)

    async def saves(self) -> Saves:
        """Return how long a save takes: by the journal, else as trainers report, else as configured."""
        statuses, _ = await self.statuses()
        return await self._once("saves", self._read_saves, statuses)

    def close(self) -> None:
        """Drop what nobody waits for any more."""
        for task in self._tasks.values():
            task.cancel()

    async def known_targets(self) -> tuple[TargetLook, ...]:
        """Return every configured target; none where they are refused, which is another question's."""
        try:
            return await self.targets()
        except ConfigError:
            return ()

    async def _once(self, key: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if key not in self._tasks:
            work = in_thread(call, *args, **kwargs)
            self._tasks[key] = asyncio.create_task(work, name=f"check {key}")
        # Shielded: who asks first may run out of time, and the others still want to know.
        result: T = await asyncio.shield(self._tasks[key])
        return result

    def _read_saves(self, statuses: list[Status]) -> Saves:
        ledger = Ledger(self.clock)
        unreadable = 0
        if self.settings.state_dir is not None:
            events, unreadable = read_journal(self.settings.state_dir)
            unreadable += ledger.replay(events)
        saves = ledger.measured_saves()
        fresh = [status for status in statuses if status.is_fresh(self.clock.now())]
        if not saves:
            saves = [
                MeasuredSave(seconds=s.saved.save_seconds, is_durable=True, step_seconds=_step_seconds(s))
                for s in fresh
                if s.saved.at is not None and s.saved.save_seconds > 0
            ]
        measured = sum(save.is_durable for save in saves)
        seconds = estimate(self.settings.policy, saves)
        if not measured:
            seconds += max((_step_seconds(status) for status in fresh), default=0.0)
        return Saves(seconds=seconds, measured=measured, unreadable=unreadable)


def _find_main_process() -> int | None:
    """Return the pid of the daemon's unit, which systemd tells to everybody; None: it does not run."""
    try:
        return unit_facts(UNIT).main_pid or None
    except ActionError:
        return None  # no systemd here


def _step_seconds(status: Status) -> float:
    return min(1 / status.steps_per_second, 600.0) if status.steps_per_second > 0 else 0.0


def _look(target: Target, settings: TargetSettings) -> TargetLook:
    procs: tuple[Proc, ...] = ()
    problem = ""
    try:
        procs = target.find()
    except ActionError as error:
        problem = str(error)
    owner = (procs[0].uid, procs[0].gid) if procs and procs[0].uid >= 0 else target.owner()
    return TargetLook(
        settings=settings,
        label=target.label,
        procs=procs,
        problem=problem,
        owner=owner,
        groups=_groups(procs, settings.unit, owner),
        obstacle=target.obstacle() if isinstance(target, Foreseeing) else "",
    )


def _groups(procs: tuple[Proc, ...], unit: str, owner: Owner | None) -> frozenset[int]:
    """Return the groups of who runs, or else those that the unit will give it."""
    if procs and (seen := read_groups(procs[0].pid)):
        return seen
    if not unit or owner is None:
        return frozenset()
    try:
        names = unit_facts(unit).groups.split()
    except ActionError:
        return frozenset()
    return groups_of(owner).union(*(_gids(name) for name in names))


def _gids(name: str) -> set[int]:
    try:
        return {int(name) if name.isdigit() else grp.getgrnam(name).gr_gid}
    except KeyError:
        return set()  # systemd will not start the unit, and say why


def groups_of(owner: Owner) -> frozenset[int]:
    """Return the groups of a user, its own one first known by `owner`."""
    uid, gid = owner
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return frozenset({gid})
    return frozenset({gid, *os.getgrouplist(entry.pw_name, entry.pw_gid)})
