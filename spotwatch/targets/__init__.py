# SPDX-License-Identifier: Apache-2.0
"""Who the trainer is, and how it is stopped and started again: a unit, a pidfile, a pattern, a child.

The parts: `_proc` (identity), `_send` (the one way to signal), `_choice` (launchers, wrappers, workers),
`_shells` (which of them are trainers), `_finders` and `_pidfile` (whom `_process` signals), `_systemd` and
`_unit` (what systemd stops), `_obstacles` (what would be in the way). Nothing here knows why or when.
"""

from __future__ import annotations

import os
import pwd
import re
import signal
from pathlib import Path
from typing import Protocol, runtime_checkable

from spotwatch.config import TargetSettings
from spotwatch.errors import ConfigError
from spotwatch.targets._finders import ChildFinder, PatternFinder, Spawned, left_behind
from spotwatch.targets._obstacles import explain_end
from spotwatch.targets._pidfile import PidfileFinder
from spotwatch.targets._proc import Proc, has_pending, is_alive, read_groups
from spotwatch.targets._process import Finder, PartlyToldError, ProcessTarget
from spotwatch.targets._systemd import UnitFacts, unit_facts, unit_text
from spotwatch.targets._unit import UnitTarget

__all__ = [
    "Foreseeing",
    "Headed",
    "PartlyToldError",
    "Proc",
    "Remembering",
    "Restarting",
    "Spawned",
    "Supervised",
    "Target",
    "UnitFacts",
    "explain_end",
    "has_pending",
    "is_alive",
    "left_behind",
    "make_targets",
    "read_groups",
    "unit_facts",
    "unit_text",
]

# SIGKILL and SIGSTOP cannot be handled: no trainer saves on them.
_UNCATCHABLE = frozenset({signal.SIGKILL, signal.SIGSTOP})


class Target(Protocol):
    """One trainer."""

    label: str
    """How it is called: `unit spot-train.service`, `pidfile /run/t.pid`, `process 'train.py'`, `child`."""
    signum: signal.Signals
    """What a stop sends; for a unit what systemd sends unless the unit says otherwise."""

    def find(self) -> tuple[Proc, ...]:
        """Return the processes to tell now, verified, at least one; a unit blocks for up to 2 s.

        Raises:
            ActionError: it is missing, restarting, someone else's, or may not be signalled.
        """

    def owner(self) -> tuple[int, int] | None:
        """Return uid and gid of the trainer, for the flag; None: unknown."""

    async def stop(self, procs: tuple[Proc, ...]) -> str:
        """Tell `procs` to save and exit, once, and return what was done in a few words.

        Raises:
            PartlyToldError: some were not told.
            ActionError: none was.
        """

    async def start(self) -> str:
        """Start again what was stopped, and say so; empty when this kind of target cannot be started.

        Raises:
            ActionError: it did not start.
        """


@runtime_checkable
class Headed(Protocol):
    """A target that may tell others than those it is made of: whom a launcher or a shell runs."""

    def heads(self) -> tuple[Proc, ...]:
        """Return the processes that the configuration names; the trainer has not left before they have.

        Raises:
            ActionError: there are none.
        """

    def is_away(self) -> bool:
        """Tell whether there certainly is nobody to tell: our own child, not begun or ended."""


@runtime_checkable
class Supervised(Protocol):
    """A target about whose end somebody else is sure: systemd."""

    def is_down(self) -> bool:
        """Tell whether it certainly does not run and will not by itself; blocks for up to 2 s."""


@runtime_checkable
class Restarting(Protocol):
    """A target that may be between two starts."""

    def is_restarting(self) -> bool:
        """Tell whether it has ended and will be started again by itself; blocks for up to 2 s."""


@runtime_checkable
class Remembering(Protocol):
    """A target that knows whether it was ever found, so that its configuration is right."""

    @property
    def was_found(self) -> bool:
        """Tell whether it was found since we began."""


@runtime_checkable
class Foreseeing(Protocol):
    """A target that knows before a stop whether one could reach it."""

    def obstacle(self) -> str:
        """Return what keeps a stop from reaching it, and what to do; empty where nothing does.

        That it does not run at the moment is no obstacle. Blocks for up to 6 s.
        """


def make_targets(settings: tuple[TargetSettings, ...], child: Spawned | None) -> tuple[Target, ...]:
    """Return the targets that the configuration names, the child first.

    Raises:
        ConfigError: a setting names nothing that can be told; all of them at once.
    """
    targets: list[Target] = []
    problems: list[str] = []
    # A [[target]] that names nobody says how the child is told.
    for_child = [one for one in settings if child is not None and _names(one) == 0]
    if child is not None:
        try:
            targets.append(_child_target(child, for_child[0] if for_child else TargetSettings()))
        except ConfigError as error:
            problems += [f"target: {problem}" for problem in error.problems]
    for index, one in enumerate(settings):
        if one in for_child[:1]:
            continue
        try:
            targets.append(_make_target(one))
        except ConfigError as error:
            problems += [f"target[{index}]: {problem}" for problem in error.problems]
    if problems:
        raise ConfigError(*problems)
    return tuple(targets)


def _names(one: TargetSettings) -> int:
    return sum(map(bool, (one.unit, one.pidfile, one.process)))


def _child_target(child: Spawned, one: TargetSettings) -> Target:
    return ProcessTarget("child", ChildFinder(child), signum=_signal(one.signal), leaves=one.leaves)


def _make_target(one: TargetSettings) -> Target:
    if _names(one) != 1:
        raise ConfigError("set exactly one of unit, pidfile and process")
    signum = _signal(one.signal)
    if one.unit:
        return UnitTarget(one.unit, signum=signum, leaves=one.leaves)
    owner = _account(one.user) if one.user else None
    uid = owner[0] if owner else None
    if uid is None and os.geteuid() != 0:
        uid = os.geteuid()
    finder: Finder
    if one.pidfile:
        label = f"pidfile {one.pidfile}"
        finder = PidfileFinder(Path(one.pidfile), uid)
    else:
        label = f"process {one.process!r}" + (f" of {one.user}" if one.user else "")
        finder = PatternFinder(_pattern(one.process), uid)
    return ProcessTarget(label, finder, signum=signum, leaves=one.leaves, owner=owner)


def _signal(name: str) -> signal.Signals:
    try:
        signum = signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except KeyError:
        raise ConfigError(f"signal {name!r} is unknown; expected one such as SIGTERM or SIGUSR1") from None
    if signum in _UNCATCHABLE:
        raise ConfigError(f"signal {name!r} cannot be handled, so the trainer could not save; use SIGTERM")
    return signum


def _pattern(text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ConfigError(f"process {text!r} is no regular expression: {error}") from error
    if pattern.search(""):
        raise ConfigError(f"process {text!r} fits every command line; name the trainer")
    return pattern


def _account(user: str) -> tuple[int, int]:
    try:
        entry = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
    except KeyError:
        if user.isdigit():
            # A number that has no name is usual in containers; its group goes by the same number there.
            return int(user), int(user)
        raise ConfigError(f"user {user!r} is unknown on this machine; a uid works too") from None
    return entry.pw_uid, entry.pw_gid
