# SPDX-License-Identifier: Apache-2.0
"""Telling every target to stop: each on its own, again until it worked, and not twice without need.

A target that is missing, restarting or unsignallable fails only its own part. It writes no handshake file and
decides no time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

from spotwatch.absence import Absence, Standing
from spotwatch.actions.signal import SignalAction
from spotwatch.errors import ActionError
from spotwatch.model import Notice, Step
from spotwatch.parts import Parts
from spotwatch.records import Order
from spotwatch.targets import Foreseeing, Headed, Proc, Target

FIND_SECONDS = 0.5
"""How long the search for processes may hold up the order; a target that is slower is told after it."""
SEEN_SECONDS = 2.0
SEEN_SHARE = 0.05
"""A trainer of the library may take min(2 s, 5 % of the window) to say that it has seen a stop."""
RETRY_SECONDS = 1.0
START_RETRY_SECONDS = 30.0
GONE = "the process is gone"


class NobodyThereError(ActionError):
    """There is nobody to be told, and nothing is lost by it: no failure, but to be tried again."""


class Act(Protocol):
    """Awaits one deed, measures and records it; tells whether it was done."""

    async def __call__(self, action: str, deed: Awaitable[str], order: Order, *, key: str = "") -> bool:
        """Await `deed`."""


class Stopper:
    """Tells the targets of a stop, and starts them again when it is lifted.

    Args:
        parts: targets, trainers, ledger.
        act: of the delivery.
        absence: knows whom there is no sense in telling.
    """

    def __init__(self, parts: Parts, act: Act, absence: Absence) -> None:
        self._p = parts
        self._act = act
        self._absence = absence
        self._was_between: set[tuple[int, str]] = set()
        self.replayed_seq = parts.ledger.state.highest_seq
        """Orders up to this one are of an earlier life: evidence comes before a second signal."""
        self._retry_at: dict[str, float] = {}
        self._waited_for_seen = 0

    async def stop_all(self, order: Order, step: Step, notice: Notice) -> bool:
        """Tell whoever has not been told and whose turn it is; False when that failed for one of them."""
        # A child that has ended, or has not begun, misses nothing; it is started after the stop.
        untold = [t for t in self._due(order) if not (isinstance(t, Headed) and t.is_away())]
        if not untold:
            return True
        await self._wait_until_seen(order)
        return all(await asyncio.gather(*(self._stop(t, order, step, notice) for t in untold)))

    async def start_all(self, order: Order) -> None:
        """Start again what the lifted stop had stopped and `order` names, each once it has left.

        One that was told and still saves will leave after it: started before, it would end up not running.
        """
        for target in self._due(order):
            if target.label not in order.procs:
                continue
            if any(map(self._p.is_alive, procs_of(order.procs, target.label))):
                if self._p.clock.boot() - order.boot >= self._p.policy.unanswered_seconds:
                    # It does not mean to leave. If it ends one day, then for reasons of its own.
                    self._p.ledger.record("told", seq=order.seq, receiver=target.label)
                continue
            if await self._act("start", target.start(), order, key=f"start {target.label}"):
                self._p.ledger.record("told", seq=order.seq, receiver=target.label)
            else:
                self._retry_at[target.label] = self._p.clock.monotonic() + START_RETRY_SECONDS

    def is_start_owed(self, order: Order) -> bool:
        """Tell whether something that `order` names is still to be started."""
        labels = {target.label for target in self._p.targets}
        return any(label in labels and label not in order.told for label in order.procs)

    def is_done(self, order: Order) -> bool:
        """Tell whether every target has been told of this stop."""
        return all(target.label in order.told for target in self._p.targets)

    def _due(self, order: Order) -> list[Target]:
        now = self._p.clock.monotonic()
        return [
            target
            for target in self._p.targets
            if target.label not in order.told and self._retry_at.get(target.label, now) <= now
        ]

    async def _stop(self, target: Target, order: Order, step: Step, notice: Notice) -> bool:
        p = self._p
        label = target.label
        if order.seq <= self.replayed_seq:
            shown = self._evidence(order, target)
            if shown == GONE:
                # Whoever has come in its place has not been told.
                found = await find_all([target])
                shown = "" if any(map(p.is_alive, procs_of(found, label))) else shown
            if shown:
                p.ledger.record("told", seq=order.seq, receiver=label, detail=shown)
                return True
        action = SignalAction(target, is_told=lambda proc: _receiver(label, proc) in order.told)
        heads = [] if label in order.procs else await asyncio.to_thread(_heads, target)
        if await self._act("signal", self._fire(action, order, step, notice), order, key=label):
            procs = [proc.to_json() for proc in action.told]
            p.ledger.record("told", seq=order.seq, receiver=label, procs=procs)
            if heads and heads != procs:
                p.ledger.record("told", seq=order.seq, receiver=heads_of(label), procs=heads)
            self._retry_at.pop(label, None)
            return True
        for proc in action.told:
            p.ledger.record("told", seq=order.seq, receiver=_receiver(label, proc))
        self._retry_at[label] = p.clock.monotonic() + RETRY_SECONDS
        return False

    async def _fire(self, action: SignalAction, order: Order, step: Step, notice: Notice) -> str:
        try:
            return await action.fire(step, notice)
        except ActionError as error:
            label = action.target.label
            standing = None if action.told else await self._absence.excuse(label)
            if standing is None:
                raise
            if standing is Standing.RESTARTING:
                self._was_between.add((order.seq, label))
            elif (order.seq, label) in self._was_between:
                # `draining` kept systemd from starting it again: when the stop is lifted, that is owed.
                return f"{label}: ended before it was told, and is not started again"
            raise NobodyThereError(str(error)) from error

    def _evidence(self, order: Order, target: Target) -> str:
        """Return what shows that `target` was told before the crash; empty without evidence."""
        if self._p.trainers.have_seen(order.seq):
            return "the trainer says that it has seen the order"
        procs = procs_of(order.procs, target.label)
        rest = [proc for proc in procs if self._p.is_alive(proc)]
        if not procs:
            return ""
        if not rest:
            return GONE
        is_pending = all(self._p.has_pending(proc, target.signum) for proc in rest)
        return "the signal is pending" if is_pending else ""

    async def _wait_until_seen(self, order: Order) -> None:
        p = self._p
        if order.seq in (self._waited_for_seen, 0) or order.seq <= self.replayed_seq:
            return
        self._waited_for_seen = order.seq
        limit = SEEN_SECONDS
        if order.deadline is not None:
            limit = min(limit, max(0.0, (order.deadline - p.clock.now()).total_seconds()) * SEEN_SHARE)
        end = p.clock.monotonic() + limit
        while p.trainers.fresh() and not p.trainers.have_seen(order.seq) and p.clock.monotonic() < end:
            await p.clock.sleep(0.05)
            p.trainers.look()


async def find_all(targets: Sequence[Target]) -> dict[str, list[dict[str, Any]]]:
    """Return, by target label, the processes that a stop would signal now; absent where none was found.

    Where the configuration names others, a shell or a launcher, those too, by `heads_of` the label.
    """

    async def find(target: Target) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIND_SECONDS):
                with contextlib.suppress(ActionError):
                    procs = await asyncio.to_thread(target.find)
                    found[target.label] = [proc.to_json() for proc in procs]
                # Also where none may be signalled: who goes on has not stopped, whatever became of the flag.
                heads = await asyncio.to_thread(_heads, target)
                if heads and heads != found.get(target.label):
                    found[heads_of(target.label)] = heads
        return found

    each = await asyncio.gather(*(find(target) for target in targets))
    return {label: procs for found in each for label, procs in found.items()}


async def are_known_gone(targets: Sequence[Target]) -> bool:
    """Tell whether nobody is there to be stopped: none is found, nor hidden, nor out of our reach."""

    def is_gone(target: Target) -> bool:
        if _heads(target):
            return False
        try:
            target.find()
        except ActionError:
            return True
        return False

    gone = await asyncio.gather(*(asyncio.to_thread(is_gone, target) for target in targets))
    return all(gone) and not await foresee(targets)


async def foresee(targets: Sequence[Target]) -> list[str]:
    """Return what would keep a stop from a target, and what to do; never raises, for nothing hangs on it."""
    able = [target for target in targets if isinstance(target, Foreseeing)]
    found = await asyncio.gather(*(asyncio.to_thread(t.obstacle) for t in able), return_exceptions=True)
    return [
        said if isinstance(said, str) else f"{target.label}: could not be looked at: {said!r}"
        for target, said in zip(able, found, strict=True)
        if said
    ]


def heads_of(label: str) -> str:
    """Return the name under which an order keeps what a target is made of, beside whom it tells."""
    return f"{label} as configured"


def _heads(target: Target) -> list[dict[str, Any]]:
    if not isinstance(target, Headed):
        return []
    try:
        return [proc.to_json() for proc in target.heads()]
    except ActionError:
        return []


def _receiver(label: str, proc: Proc) -> str:
    """Return the name under which one process of several is remembered as told."""
    return f"{label} pid {proc.pid} started {proc.start_ticks}"


def procs_of(recorded: Mapping[str, Any], label: str) -> list[Proc]:
    """Return the processes that an order names for one target, as far as they can be read."""
    procs = []
    for row in recorded.get(label, ()):
        try:
            procs.append(Proc.from_json(row))
        except (KeyError, ValueError, TypeError):
            continue
    return procs
