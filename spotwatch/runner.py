# SPDX-License-Identifier: Apache-2.0
"""The loop that acts: plan every tick, give the order that is due, lift what is over.

It knows no cloud and no file format, and leaves to `delivery` how an order reaches the trainer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from spotwatch.actions import Occasion
from spotwatch.cases import Phase
from spotwatch.delivery import Delivery
from spotwatch.errors import ActionError, ProviderError
from spotwatch.model import Certainty, Do, Event, Kind, Notice, Step
from spotwatch.parts import Parts
from spotwatch.policy import Plan, estimate, plan
from spotwatch.providers import Confirmer
from spotwatch.records import Order
from spotwatch.stopping import heads_of

TICK_SECONDS = 1.0
WAITING_TICK_SECONDS = 0.2
"""Between looks while an order is unanswered."""
ORPHAN_SECONDS = 15.0
"""A stop in `order.json` that no case explains is lifted after this time of watching."""

_OCCASIONS: dict[str, Occasion] = {"missed": "missed", "withdrawn": "withdrawn", "survived": "survived"}


class Runner:
    """Carries out what is due.

    Args:
        parts: made by the daemon.
    """

    def __init__(self, parts: Parts) -> None:
        self._p = parts
        self._wake = asyncio.Event()
        self._orphan_until = parts.clock.monotonic() + ORPHAN_SECONDS
        self._acting = asyncio.Lock()
        self._failed_with = ""
        self._unheard_with = ""
        self._failing_since: float | None = None
        self.delivery = Delivery(parts)
        self.plan = Plan()
        parts.ledger.subscribe(self._on_event)

    def wake(self) -> None:
        """Look at once instead of at the next tick."""
        self._wake.set()

    async def run(self) -> None:
        """Tick until cancelled; an error in one tick is told and does not end the loop."""
        while True:
            self._wake.clear()
            await self.attempt(self.tick)
            try:
                async with asyncio.timeout(self._seconds_to_next_tick()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def attempt(self, deed: Callable[[], Awaitable[None]]) -> None:
        """Do what a tick does; an error is told and counted against us, and ends nothing."""
        try:
            await deed()
        except Exception as error:  # noqa: BLE001 - the next tick must come
            if self._failing_since is None:
                self._failing_since = self._p.clock.monotonic()
            self._tell_unexpected(error)
        else:
            self._failing_since = None
            self._failed_with = ""

    def failing_seconds(self) -> float:
        """Return for how long each tick has failed, 0 when the last one did not."""
        since = self._failing_since
        return 0.0 if since is None else self._p.clock.monotonic() - since

    def _tell_unexpected(self, error: Exception) -> None:
        """Tell it once per change: a tick that fails comes again five times a second."""
        text = f"{type(error).__name__}: {error}"
        if text != self._failed_with:
            self._failed_with = text
            self._p.ledger.record("unexpected", error=text, exception=error)

    async def tick(self) -> None:
        """Do everything that is due now."""
        async with self._acting:
            await self._tick()

    async def _tick(self) -> None:
        p = self._p
        p.trainers.look()
        await self._collect()
        p.ledger.check_ends()
        await self._lift_if_over()
        self.plan = self._make_plan()
        due = self._due_step()
        if due is not None:
            await self.delivery.give(due)
            self.plan = self._make_plan()
        else:
            await self.delivery.go_on()
        await self._release()
        self._tell_what_is()

    async def _collect(self) -> None:
        """Hear the answers; an error there, told once per change, keeps no step from being carried out."""
        try:
            await self.delivery.collect()
        except Exception as error:  # noqa: BLE001 - a stop must go out
            text = f"{type(error).__name__}: {error}"
            if text != self._unheard_with:
                self._unheard_with = text
                self._p.ledger.record("unexpected", error=f"trainers' answers: {text}", exception=error)
        else:
            self._unheard_with = ""

    async def give_overdue_stop(self) -> None:
        """Go on with a stop of an earlier life, or give one that is overdue; before the first poll."""
        self._p.trainers.look()
        await self.delivery.recover()
        self.plan = self._make_plan()
        if self.plan.stop is not None and self.plan.stop.at <= self._p.clock.now():
            await self.delivery.give(self.plan.stop)
        elif self._p.ledger.is_stop_in_force():
            await self.delivery.go_on()

    async def stop_now(self, why: str) -> None:
        """Order a stop at once, because this machine or pod is being shut down."""
        async with self._acting:
            if self._p.ledger.is_stop_in_force():
                return
            ids = tuple(case.notice.id for case in self._p.ledger.open_cases())
            await self.delivery.give(Step(at=self._p.clock.now(), do=Do.STOP, why=why, case_ids=ids))

    def is_start_owed(self) -> bool:
        """Tell whether a stop was lifted whose targets have not all been started again."""
        lift = self._p.ledger.last_lift()
        return lift is not None and self.delivery.stopper.is_start_owed(lift)

    def has_due_step(self) -> bool:
        """Tell whether something is left to be done now, as `--once` asks."""
        self.plan = self._make_plan()
        return self._due_step() is not None

    def estimate_seconds(self) -> float:
        """Return how long the next save may take."""
        waiting = self._p.ledger.waiting_flush()
        waited = 0.0 if waiting is None else self._p.clock.boot() - waiting.boot
        runs = {status.run_id for status in self._p.trainers.fresh()} or {""}
        saves = [self._p.ledger.measured_saves(run_id) for run_id in runs]
        return max(estimate(self._p.policy, one, waited_seconds=waited) for one in saves)

    def last_stop(self) -> Order | None:
        """Return the last order if it is a stop."""
        order = self._p.ledger.last_order()
        return order if order is not None and order.do is Do.STOP else None

    def _make_plan(self) -> Plan:
        p = self._p
        made = plan(
            p.ledger.views(),
            p.policy,
            p.ledger.progress(),
            now=p.clock.now(),
            save_seconds=self.estimate_seconds(),
        )
        for case_id, flush_first in made.decisions.items():
            p.ledger.record("decided", case=case_id, flush_first=flush_first)
        order = self.last_stop()
        for case_id in made.joins if order is not None else ():
            p.ledger.record("joined", case=case_id, seq=order.seq if order else 0)
        return made

    def _due_step(self) -> Step | None:
        now = self._p.clock.now()
        return next((s for s in (self.plan.stop, self.plan.flush) if s is not None and s.at <= now), None)

    def _seconds_to_next_tick(self) -> float:
        order = self._p.ledger.last_order()
        if order is not None and order.do is not Do.NONE and not order.answer:
            return WAITING_TICK_SECONDS
        now = self._p.clock.now()
        due = [(s.at - now).total_seconds() for s in (self.plan.stop, self.plan.flush) if s is not None]
        return max(0.01, min([TICK_SECONDS, *due]))

    async def _lift_if_over(self) -> None:
        """Say that nothing is in force, once no case is, and start again what was stopped."""
        p = self._p
        order = p.ledger.last_order()
        if order is None:
            await self._lift_orphan()
            return
        is_ours = order.seq > self.delivery.replayed_seq
        if order.do is Do.NONE or (is_ours and not order.case_ids):
            # A stop without a case is our own shutdown; the next life lifts it.
            return
        is_over = not p.ledger.is_stop_in_force() if order.do is Do.STOP else not p.ledger.open_cases()
        if not is_over:
            return
        # Whoever was found then may have left by the order alone, before any signal.
        labels = [t.label for t in p.targets if t.label in order.told or t.label in order.procs]
        keys = {label: (label, heads_of(label)) for label in labels}
        stopped = {
            label: [proc for key in keys[label] for proc in order.procs.get(key, [])] for label in labels
        }
        await self.delivery.give(
            Step(at=p.clock.now(), do=Do.NONE, why="no notice is in force any more"),
            starts=stopped if order.do is Do.STOP else {},
        )

    async def _lift_orphan(self) -> None:
        """Lift a stop whose journal was lost, if no provider has explained it meanwhile."""
        in_force = self._p.handshake.order_in_force()
        is_stopped = in_force is not None and in_force.do is Do.STOP
        if not is_stopped and not self._p.handshake.is_draining():
            return
        if self._p.clock.monotonic() > self._orphan_until:
            why = "a stop was in force that no notice explains"
            await self.delivery.give(Step(at=self._p.clock.now(), do=Do.NONE, why=why))

    async def _release(self) -> None:
        """Tell the cloud to go ahead, where that is wanted, harms no neighbour, and the save is durable."""
        p = self._p
        order = self.last_stop()
        if not p.release.azure_approve or order is None or order.answer != "durable":
            return
        for case in self.delivery.cases_of(order):
            confirmer = p.confirmers.get(case.notice.provider)
            if confirmer is None or case.is_released or case.phase is not Phase.STOPPED:
                continue
            if not _may_be_released(case.notice):
                continue
            deed = _confirm(confirmer, case.notice)
            if await self.delivery.act("release", deed, order, notice=case.notice):
                p.ledger.record("released", case=case.notice.id, provider=case.notice.provider)

    def _on_event(self, event: Event) -> None:
        if event.name == "other_machine":
            # What lies there belongs to the machine that this one was cloned from.
            self._orphan_until = float("-inf")
        occasion = _OCCASIONS.get(event.name)
        if occasion is not None:
            self._p.tellers.tell(occasion, Notice.from_json(event.data["notice"]), {"at": event.at})
            self.wake()

    def _tell_what_is(self) -> None:
        p = self._p
        active: dict[tuple[str, str], int] = {}
        deadlines: list[datetime] = []
        for view in p.ledger.views():
            key = (view.notice.provider, view.notice.kind.value)
            active[key] = active.get(key, 0) + 1
            if view.deadline is not None:
                deadlines.append(view.deadline)
        phases = Counter(case.phase.value for case in p.ledger.open_cases())
        facts: dict[str, Any] = p.trainers.facts()
        deadline = min(deadlines).timestamp() if deadlines else None
        known: dict[str, Any] = {"active": active, "phases": phases, "deadline": deadline}
        p.ledger.record("watched", **known, estimate_seconds=self.estimate_seconds(), **facts)


def _may_be_released(notice: Notice) -> bool:
    """Tell whether approving `notice` is ours to do: a timed event of this machine alone, and no drill."""
    is_timed = notice.kind is Kind.RECLAIM and notice.certainty is Certainty.EXACT
    return is_timed and notice.sole_resource and not notice.drill


async def _confirm(confirmer: Confirmer, notice: Notice) -> str:
    try:
        await confirmer.confirm(notice)
    except ProviderError as error:
        raise ActionError(str(error)) from error
    return "approved"
