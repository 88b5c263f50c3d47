# SPDX-License-Identifier: Apache-2.0
"""Whether nobody is here who could be told: what systemd, /proc and the trainers' last words show together.

A run that has finished leaves a machine on which no order can be carried out, and none is missed. That
nothing is found proves little by itself, since a pattern may be wrong: somebody must know better, systemd or
whoever spoke last. It tells nobody anything, and whoever comes later is told all the same.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from enum import Enum

from spotwatch.errors import ActionError
from spotwatch.parts import Parts
from spotwatch.records import Order
from spotwatch.targets import Foreseeing, Headed, Remembering, Restarting, Supervised, Target

LOOK_SECONDS = 0.5
"""How long a look may hold up a tick; what is not known by then is not known."""
EXCUSE_SECONDS = 5.0
"""The same, for one that could not be told: a machine under load is given time before an alarm is raised."""
AGAIN_SECONDS = 1.0


class Standing(Enum):
    """How one target is."""

    HERE = "here"
    UNKNOWN = "unknown"
    """Hidden from us, or out of our reach."""
    RESTARTING = "restarting"
    """It has ended, and systemd is about to start it again."""
    MISSING = "missing"
    """It is not found, nor has it been in our life: it may have ended, or the configuration may be wrong."""
    GONE = "gone"
    """It is certain that it does not run."""


class Absence:
    """Knows whether somebody was here to hear an order.

    Args:
        parts: targets, trainers, ledger.
    """

    def __init__(self, parts: Parts) -> None:
        self._p = parts
        self._replayed_seq = parts.ledger.state.highest_seq
        self._met_seq = 0
        self._look_at = float("-inf")

    async def covers(self, order: Order) -> bool:
        """Tell whether nobody has been here since `order` was given, or the flush before it that still waits.

        Somebody who was, and has left without an answer, was lost with the work.
        """
        p = self._p
        first = p.ledger.waiting_flush() or order
        if order.seq <= self._met_seq or any(order.procs.values()) or p.trainers.have_heard(first):
            return False
        if order.seq <= self._replayed_seq and not p.trainers.statuses:
            # Whether a script was here when an earlier life gave it, nobody has written down.
            return False
        if p.clock.monotonic() < self._look_at:
            return False
        self._look_at = p.clock.monotonic() + AGAIN_SECONDS
        standings = await self._look(LOOK_SECONDS)
        if p.trainers.fresh() or Standing.HERE in standings.values():
            self._met_seq = order.seq
        return self._is_nobody_left(standings)

    async def excuse(self, label: str) -> Standing | None:
        """Return how the target `label` is, where that it could not be told is no failure; else None."""
        standings = await self._look(EXCUSE_SECONDS)
        standing = standings[label]
        if standing is Standing.RESTARTING:
            return standing
        is_somebody_here = Standing.HERE in standings.values()
        is_gone = standing is Standing.GONE and is_somebody_here
        return standing if is_gone or self._is_nobody_left(standings) else None

    def _is_nobody_left(self, standings: Mapping[str, Standing]) -> bool:
        found = set(standings.values())
        if self._p.trainers.fresh() or not found <= {Standing.GONE, Standing.MISSING}:
            return False
        if found == {Standing.GONE}:
            return True
        # The first process of a container of its own sees no other container's.
        if not found or os.getpid() == 1:
            return self._p.trainers.have_left()
        return bool(self._p.trainers.statuses)

    async def _look(self, seconds: float) -> dict[str, Standing]:
        targets = self._p.targets
        labels = [target.label for target in targets]
        try:
            async with asyncio.timeout(seconds):
                found = await asyncio.gather(*(asyncio.to_thread(_standing, target) for target in targets))
        except TimeoutError:
            return dict.fromkeys(labels, Standing.UNKNOWN)
        return dict(zip(labels, found, strict=True))


def _standing(target: Target) -> Standing:
    if _is_here(target):
        return Standing.HERE
    if isinstance(target, Headed) and target.is_away():
        return Standing.GONE
    if isinstance(target, Supervised):
        if target.is_down():
            return Standing.GONE
        is_restarting = isinstance(target, Restarting) and target.is_restarting()
        return Standing.RESTARTING if is_restarting else Standing.UNKNOWN
    if isinstance(target, Foreseeing) and target.obstacle():
        return Standing.UNKNOWN
    was_found = isinstance(target, Remembering) and target.was_found
    return Standing.GONE if was_found else Standing.MISSING


def _is_here(target: Target) -> bool:
    # Also where none may be signalled: what the configuration names goes on.
    looks = [target.find, *([target.heads] if isinstance(target, Headed) else [])]
    for look in looks:
        try:
            if look():
                return True
        except ActionError:
            continue
    return False
