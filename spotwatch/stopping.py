# SPDX-License-Identifier: Apache-2.0
"""Telling every target to stop: each on its own, again until it worked, and not twice without need.

A target that is missing, restarting or unsignallable fails only its own part. It writes no handshake file and
decides no time.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from spotwatch.actions.signal import SignalAction
from spotwatch.cases import Order
from spotwatch.errors import ActionError
from spotwatch.model import Notice, Step
from spotwatch.targets import Proc, Target, has_pending, is_alive

FIND_SECONDS = 0.5
"""How long the search for processes may hold up the order; a target that is slower is told after it."""


async def find_all(targets: Sequence[Target]) -> dict[str, list[dict[str, Any]]]:
    """Return, by target label, the processes that a stop would signal now; absent where none was found."""

    async def find(target: Target) -> tuple[str, tuple[Proc, ...]]:
        try:
            async with asyncio.timeout(FIND_SECONDS):
                return target.label, await asyncio.to_thread(target.find)
        except (ActionError, TimeoutError):
            return target.label, ()

    found = await asyncio.gather(*(find(target) for target in targets))
    return {label: [proc.to_json() for proc in procs] for label, procs in found if procs}


def evidence(order: Order, label: str, *, is_seen: bool, signum: int = signal.SIGTERM) -> str:
    """Return what shows that `label` was told before a crash could be recorded; empty without evidence.

    Args:
        order: as replayed from the journal.
        label: of the target.
        is_seen: the trainers say that they work on this order.
        signum: the target's signal.
    """
    if is_seen:
        return "the trainer says that it has seen the order"
    procs = _procs(order.procs, label)
    if not procs:
        return ""
    if not any(is_alive(proc) for proc in procs):
        return "the process is gone"
    if any(has_pending(proc, signum) for proc in procs):
        return "the signal is pending"
    return ""


def are_gone(order: Order) -> bool:
    """Tell whether every process that the order named, and whoever was signalled, has exited."""
    procs = [proc for label in order.procs for proc in _procs(order.procs, label)]
    return bool(procs) and not any(is_alive(proc) for proc in procs)


async def stop_one(target: Target, step: Step, notice: Notice) -> str:
    """Tell one target, and return what was done.

    Raises:
        ActionError: it is not there, or could not be told.
    """
    return await SignalAction(target).fire(step, notice)


def _procs(recorded: Mapping[str, Any], label: str) -> list[Proc]:
    procs = []
    for row in recorded.get(label, ()):
        try:
            procs.append(Proc.from_json(row))
        except (KeyError, ValueError, TypeError):
            continue
    return procs
