# SPDX-License-Identifier: Apache-2.0
"""What must hold in every simulation, whatever happens: no missed notice, no false stop, no lost step.

It looks at what the cloud said and the trainer did, not at what the daemon believes. It changes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest

from spotwatch import handshake
from spotwatch.model import Do, Event, Kind
from spotwatch.policy import QUIET_SECONDS
from spotwatch.simulation._machine import Machine
from spotwatch.simulation._story import Announced

KNOWN_SECONDS = 3.0
"""What the trainer did longer ago than this the daemon knows, unless it was dead meanwhile."""
SLACK_SECONDS = 10.0


@dataclass(slots=True, kw_only=True)
class Ordered:
    """One order as it was given."""

    at: float
    seq: int
    do: Do
    case_ids: tuple[str, ...]


@dataclass(slots=True)
class Checks:
    """Gathers what happens and finds what must not."""

    problems: list[str] = field(default_factory=list)
    orders: list[Ordered] = field(default_factory=list)
    answered: set[int] = field(default_factory=set)
    survived_at: list[float] = field(default_factory=list)

    def on_event(self, machine: Machine, event: Event) -> None:
        """Judge one event as it happens."""
        now = machine.clock.monotonic()
        if event.name == "ordered":
            order = Ordered(
                at=now, seq=event.data["seq"], do=Do(event.data["do"]), case_ids=tuple(event.data["cases"])
            )
            self._judge_order(machine, order)
            self.orders.append(order)
        elif event.name == "answered":
            self.answered.add(event.data["seq"])
        elif event.name == "survived":
            self._judge_survival(machine, event)
        elif event.name == "unexpected" and not event.provider:
            self.problems.append(f"{now:.1f}: unexpected {event.data['error']}")

    def on_second(self, machine: Machine) -> None:
        """Judge the files between two deeds."""
        order = machine.ledger.last_order()
        is_told = order is not None and "handshake" in order.told
        is_draining = (machine.folder / handshake.DRAINING).exists()
        is_stopped = machine.ledger.is_stop_in_force()
        if order is not None and is_told and order.do is Do.STOP and is_stopped and not is_draining:
            self._say(machine, "a stop is in force and `draining` is not there")
        if (order is None or (is_told and order.do is not Do.STOP)) and is_draining:
            self._say(machine, "`draining` is there and no stop is in force")

    def at_end(self, machine: Machine) -> None:
        """Judge the whole."""
        replayed = machine.replayed().snapshot()
        live = machine.ledger.snapshot()
        if json.dumps(replayed.to_json()["cases"]) != json.dumps(live.to_json()["cases"]) or json.dumps(
            replayed.to_json()["orders"]
        ) != json.dumps(live.to_json()["orders"]):
            self._say(machine, "the journal gives another state than the one that lived")
        self._judge_numbers(machine)
        self._judge_signals(machine)
        self._judge_flushes(machine)
        self._judge_starts(machine)
        for notice in machine.story.notices:
            self._judge_notice(machine, notice)

    # -- rules ---------------------------------------------------------------------------------------------

    def _judge_order(self, machine: Machine, order: Ordered) -> None:
        notices = [n for n in machine.story.notices if n.id in order.case_ids]
        if order.do is Do.STOP:
            believed = [n for n in notices if machine.cloud.may_be_believed(n.id) and n.asks_for_stop]
            if not believed:
                self._say(machine, f"order {order.seq}: a stop without a notice in force that asks for one")
            is_second = (
                bool(self.orders) and self.orders[-1].do is Do.STOP and not self._is_repeated(machine, order)
            )
            if is_second and not self._was_rebooted_since(machine):
                self._say(machine, f"order {order.seq}: a second stop")
        elif order.do is Do.FLUSH:
            if not any(machine.cloud.may_be_believed(n.id) for n in notices):
                self._say(machine, f"order {order.seq}: a flush without a notice in force")
            self._judge_quiet(machine, order, notices)

    def _judge_quiet(self, machine: Machine, order: Ordered, notices: list[Announced]) -> None:
        """Of scripts nothing is known to be durable, so that nothing is quiet."""
        story = machine.story
        if story.manner == "script" or story.clock_steps or story.loses_rows or machine.boots:
            return
        known = order.at - KNOWN_SECONDS
        if machine.deaths and machine.deaths[-1] > known:
            return
        recent = [end for _, end in machine.trainer.saves if known - QUIET_SECONDS + 6 < end < known]
        told = {i for o in self.orders for i in o.case_ids if o.do is Do.FLUSH}
        is_first = any(n.kind is Kind.RECLAIM and n.id not in told for n in notices)
        was_dead = any(order.at - 30 < death for death in machine.deaths)
        if recent and not is_first and not was_dead:
            self._say(
                machine, f"order {order.seq}: a flush {order.at - recent[-1]:.0f} s after a durable save"
            )

    def _is_repeated(self, machine: Machine, order: Ordered) -> bool:
        """Tell whether this is the last order again, under its own number, after its row was lost."""
        return machine.story.loses_rows and order.seq == self.orders[-1].seq

    def _was_rebooted_since(self, machine: Machine) -> bool:
        return bool(machine.boots) and machine.boots[-1] > self.orders[-1].at

    def _judge_survival(self, machine: Machine, event: Event) -> None:
        notice = next(n for n in machine.story.notices if n.id == event.case_id)
        now = machine.clock.monotonic()
        if notice.seconds is None or notice.is_sliding:
            return
        deadline = notice.at + notice.seconds
        if now < deadline + 500 and not notice.sooner_at < now and not machine.boots:
            self._say(machine, f"{event.case_id}: survived {now - deadline:.0f} s after its deadline")

    def _judge_numbers(self, machine: Machine) -> None:
        for before, after in pairwise(self.orders):
            rebooted = any(before.at < boot <= after.at for boot in machine.boots)
            is_repeated = machine.story.loses_rows and after.seq == before.seq
            if after.seq <= before.seq and not rebooted and not is_repeated:
                self._say(machine, f"order {after.seq} after order {before.seq}")

    def _judge_signals(self, machine: Machine) -> None:
        stops = [order for order in self.orders if order.do is Do.STOP]
        for stop in stops:
            end = next((o.at for o in self.orders if o.seq > stop.seq and o.at > stop.at), float("inf"))
            signals = [s for s in machine.trainer.signals if stop.at <= s < end]
            deaths = [d for d in machine.deaths if stop.at <= d < end]
            if len(signals) > 1 + len(deaths):
                self._say(machine, f"order {stop.seq}: {len(signals)} signals, {len(deaths)} deaths")
        early = [s for s in machine.trainer.signals if not stops or s < stops[0].at]
        if early:
            self._say(machine, f"signals without a stop: {early}")

    def _judge_flushes(self, machine: Machine) -> None:
        if not machine.story.is_obedient or machine.story.loses_rows:
            # An order whose row was lost may be answered without a record of it.
            return
        patience = 2 * machine.story.save_seconds + SLACK_SECONDS + 3 * len(machine.deaths)
        for order, after in zip_longest(self.orders, self.orders[1:]):
            end = machine.clock.monotonic() if after is None else after.at
            is_steady = not any(order.at < m for m, _ in machine.story.clock_steps) and not machine.boots
            if (
                order.do is Do.FLUSH
                and end - order.at > patience
                and order.seq not in self.answered
                and is_steady
            ):
                self._say(machine, f"order {order.seq}: a flush unanswered by an obedient trainer")

    def _judge_starts(self, machine: Machine) -> None:
        lifts = [o.at for b, o in pairwise(self.orders) if o.do is Do.NONE and b.do is Do.STOP]
        starts = machine.trainer.starts
        if len(starts) > len(lifts) + len(machine.deaths):
            self._say(machine, f"{len(starts)} starts after {len(lifts)} stops lifted")
        now = machine.clock.monotonic()
        is_lifted = (
            bool(self.orders) and self.orders[-1].do is Do.NONE and now - self.orders[-1].at > SLACK_SECONDS
        )
        if is_lifted and machine.story.is_obedient and not machine.trainer.is_running:
            slow = (
                machine.trainer.signals and now - machine.trainer.signals[-1] < 2 * machine.story.save_seconds
            )
            if not slow:
                self._say(machine, "the stop was lifted, and nobody trains")

    def _judge_notice(self, machine: Machine, notice: Announced) -> None:
        """Every strong reclaim with time enough ends in a save that began after it was seen."""
        story = machine.story
        seen = machine.cloud.first_shown.get(notice.id)
        if (
            seen is None
            or not story.is_obedient
            or not notice.asks_for_stop
            or notice.kind is not Kind.RECLAIM
        ):
            return
        window = notice.seconds if notice.seconds is not None else 60.0
        end = notice.at + window - (20.0 if notice.sooner_at < float("inf") else 0.0)
        # A time that the cloud moves forward leaves what is left from then on.
        known = seen if notice.sooner_at == float("inf") else max(seen, notice.sooner_at)
        needed = 2 * story.save_seconds + SLACK_SECONDS + 3 * len(machine.deaths)
        was_rebooted = any(boot > notice.at - needed for boot in machine.boots)
        if (
            notice.until < end
            or end - known < needed
            or was_rebooted
            or notice.is_sliding
            or end > story.ends_at
        ):
            return
        has_saved = any(
            seen - story.save_seconds <= began and done <= end for began, done in machine.trainer.saves
        )
        if not has_saved and not machine.trainer.was_away(end):
            self._say(machine, f"{notice.id}: seen at {seen:.1f}, nothing saved by {end:.1f}")
        if story.manner != "slow" and not machine.trainer.was_away(end):
            self._say(machine, f"{notice.id}: seen at {seen:.1f}, still training at {end:.1f}")

    def _say(self, machine: Machine, problem: str) -> None:
        line = f"{machine.clock.monotonic():.1f}: {problem}"
        if not self.problems or problem not in self.problems[-1]:
            self.problems.append(line)
