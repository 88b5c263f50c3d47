# SPDX-License-Identifier: Apache-2.0
"""What is new, changed, withdrawn, answered or already handled, also after a restart.

It turns what providers and the runner report into events, applies them to the state, and answers questions
about it. It does not decide what is to be done (policy), nor does it do anything (runner).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from spotwatch.cases import STOP_PHASES, Case, Phase, merge
from spotwatch.clock import Clock
from spotwatch.deadlines import is_stale, latest_end, on_both_clocks, skew
from spotwatch.errors import SpotwatchError
from spotwatch.model import Answer, Do, Event, Kind, Notice, Step
from spotwatch.policy import CaseView, MeasuredSave, Progress
from spotwatch.records import Order
from spotwatch.state import State

ABSENT_ANSWERS = 3
ABSENT_SECONDS = 3.0
"""A notice is withdrawn after this many good answers without it, over at least this time."""
LATE_SECONDS = 30.0
"""What a trainer has to answer in, where the deadline was past before the notice was seen."""
SURVIVED_SECONDS = 600.0
"""A machine that is still here this long after its deadline has survived."""
CLOCK_TRUST_SECONDS = 3600.0
"""When the boot clock says so for this much longer, a wall clock that disagrees is wrong."""
PUSHED_SECONDS = 3600.0
"""A pushed notice that its source no longer names is over this long after its deadline."""


class Ledger:
    """Cases and orders of this machine, fed by providers and runner.

    Args:
        clock: gives moments and names this boot.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._subscribers: list[Callable[[Event], None]] = []
        self._has_answered: set[tuple[str, str]] = set()
        self.state = State(boot_id=clock.boot_id)

    def subscribe(self, subscriber: Callable[[Event], None]) -> None:
        """Let `subscriber` see each event after it was applied."""
        self._subscribers.append(subscriber)

    def record(self, name: str, *, case: str = "", provider: str = "", **data: Any) -> Event:
        """Apply an event that happens now, and tell everybody."""
        event = Event(at=self._clock.now(), name=name, provider=provider, case_id=case, data=data)
        self.state.apply(event)
        failures: list[Exception] = []
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception as error:  # noqa: BLE001 - who listens must not stop who acts
                failures.append(error)
        if name != "unexpected":
            for failure in failures:
                self.record("unexpected", error=f"{type(failure).__name__}: {failure}", exception=failure)
        return event

    def replay(self, events: Iterable[Event]) -> int:
        """Apply the events of an earlier life, and return how many did not fit."""
        misfits = 0
        for event in events:
            try:
                self.state.apply(event)
            except (KeyError, ValueError, TypeError, AttributeError, SpotwatchError):
                misfits += 1
        return misfits

    def snapshot(self) -> Event:
        """Return the whole state as one event; a replay of it alone gives this state."""
        return Event(at=self._clock.now(), name="snapshot", data=self.state.snapshot())

    # -- what providers say --------------------------------------------------------------------------------

    def observe(self, provider: str, answer: Answer, *, absence_withdraws: bool) -> bool:
        """Compare one answer with what is known, and tell whether anything has changed."""
        now, boot = self._clock.now(), self._clock.boot()
        changed = False
        behind_by = skew(now, answer.server_at)
        notices = [self._adopt(notice, provider) for notice in answer.notices]
        for notice in notices:
            is_first = (provider, notice.signal) not in self._has_answered
            is_left_over = is_first and is_stale(notice, answer.server_at or now)
            changed |= self._see(notice, behind_by=behind_by, is_left_over=is_left_over)
        present = {notice.id for notice in notices}
        cancelled = {self._own_id(notice_id, provider) for notice_id in answer.cancelled}
        for case in list(self.state.cases.values()):
            notice = case.notice
            if notice.provider != provider or notice.id in present:
                continue
            if notice.id in cancelled:
                changed |= self._end(case, "withdrawn")
            elif not absence_withdraws and _is_long_over(case, boot):
                changed |= self._end(case, "passed")
            elif absence_withdraws and notice.signal in answer.answered:
                changed |= self._note_absence(case, boot)
        self._has_answered.update((provider, signal) for signal in answer.answered)
        return changed

    def _adopt(self, notice: Notice, provider: str) -> Notice:
        """Return `notice` under an id that no other provider's case has."""
        return replace(notice, id=self._own_id(notice.id, provider), provider=provider)

    def _own_id(self, notice_id: str, provider: str) -> str:
        own = f"{provider}:{notice_id}"
        other = self.state.cases.get(notice_id)
        is_taken = other is not None and other.notice.provider != provider
        return own if is_taken or own in self.state.cases else notice_id

    def _see(self, notice: Notice, *, behind_by: float, is_left_over: bool) -> bool:
        now, boot = self._clock.now(), self._clock.boot()
        case = self.state.cases.get(notice.id)
        if case is None:
            return self._open(notice, behind_by=behind_by, is_left_over=is_left_over)
        case.absent_answers = 0
        is_renewed = case.phase is Phase.CLOSED and case.is_renewed_by(notice, now)
        if case.has_slid(notice) and not is_renewed:
            self.record("time_given", case=notice.id, provider=notice.provider, deadline=notice.deadline)
        if case.phase is Phase.CLOSED:
            return self._open(notice, behind_by=behind_by, is_left_over=False) if is_renewed else False
        change = merge(case, notice, now=now, boot=boot, skew_seconds=behind_by)
        if change is None:
            return False
        self.record(
            "notice_changed",
            case=notice.id,
            provider=notice.provider,
            notice=change.notice.to_json(),
            deadline=change.deadline,
            deadline_boot=change.deadline_boot,
            end_boot=change.end_boot,
            replans=change.replans,
            boot=boot,
        )
        return True

    def _open(self, notice: Notice, *, behind_by: float, is_left_over: bool) -> bool:
        now, boot = self._clock.now(), self._clock.boot()
        deadline, deadline_boot = on_both_clocks(notice, now=now, boot=boot, skew_seconds=behind_by)
        self.record(
            "notice_stale" if is_left_over else "noticed",
            case=notice.id,
            provider=notice.provider,
            kind=notice.kind,
            notice=notice.to_json(),
            deadline=deadline,
            deadline_boot=deadline_boot,
            end_boot=latest_end(notice, now=now, boot=boot, skew_seconds=behind_by),
            boot=boot,
        )
        return not is_left_over

    def _note_absence(self, case: Case, boot: float) -> bool:
        if case.absent_answers == 0:
            case.absent_since_boot = boot
        case.absent_answers += 1
        if case.absent_answers < ABSENT_ANSWERS or boot - case.absent_since_boot < ABSENT_SECONDS:
            return False
        return self._end(case, "passed" if case.notice.has_started else "withdrawn")

    def _end(self, case: Case, outcome: str) -> bool:
        """Close a case whose notice is gone; one that was closed already is only forgotten."""
        was_open = case.phase is not Phase.CLOSED
        name = outcome if was_open else "forgotten"
        self.record(name, **_facts(case))
        return was_open

    # -- what the runner reports ---------------------------------------------------------------------------

    def order(self, step: Step, seq: int, *, procs: Mapping[str, Any]) -> Order:
        """Record the intent to carry out `step`, and return it as an order.

        Args:
            step: flush, stop or none.
            seq: above every number seen anywhere.
            procs: by target label, the processes that would be signalled: evidence after a crash.
        """
        self.record(
            "ordered",
            seq=seq,
            do=step.do,
            why=step.why,
            deadline=step.deadline,
            cases=list(step.case_ids),
            boot=self._clock.boot(),
            procs=dict(procs),
        )
        return self.state.orders[-1]

    def settle_identity(self, instance: str) -> list[str]:
        """Close what belongs to another boot or another machine, and return the ids closed.

        Args:
            instance: the name of this machine as far as it is known; empty: not known yet.
        """
        state = self.state
        is_other_boot = state.boot_id != self._clock.boot_id
        is_other_machine = _is_other(instance, state.instance)
        if is_other_boot or is_other_machine:
            closed = [case.notice.id for case in self.open_cases()]
            self.record("other_machine", boot_id=self._clock.boot_id, instance=instance, closed=closed)
            return closed
        if instance and not state.instance:
            self.record("identified", instance=instance)
        return []

    def check_ends(self) -> None:
        """Record what only time tells: a deadline missed, a machine that outlived its own."""
        now, boot = self._clock.now(), self._clock.boot()
        for case in self.open_cases():
            if not case.ends_machine:
                continue
            if case.deadline is None and case.notice.kind is Kind.MAINTENANCE and not case.notice.has_started:
                # A time that could not be read may be a week away.
                continue
            past, has_survived = _seconds_past(case, now=now, boot=boot)
            facts = _facts(case)
            # A time that was past at first sight is missed only if the order that follows brings nothing.
            was_late = case.deadline_boot is not None and case.deadline_boot <= case.first_seen_boot
            is_time_up = past >= 0 and not (was_late and boot - case.first_seen_boot < LATE_SECONDS)
            if is_time_up and case.deadline is not None and not case.is_answered and not case.has_missed:
                self.record("missed", **facts)
            if has_survived:
                if not case.is_answered and not case.has_missed:
                    self.record("missed", **facts)
                self.record("survived", **facts)

    # -- questions -----------------------------------------------------------------------------------------

    def open_cases(self) -> list[Case]:
        """Return the cases in force, in the order in which they were seen."""
        return [case for case in self.state.cases.values() if case.phase is not Phase.CLOSED]

    def views(self) -> list[CaseView]:
        """Return the cases in force as the policy wants them, both clocks reconciled."""
        now, boot = self._clock.now(), self._clock.boot()
        return [case.view(now=now, boot=boot) for case in self.open_cases()]

    def progress(self) -> Progress:
        """Return what was ordered and answered, as the policy wants it."""
        now, boot = self._clock.now(), self._clock.boot()
        durables = [save for save in reversed(self.state.saves) if save.is_durable]
        # Those of several trainers are recorded as they are read, not in the order in which they were made.
        durable = max(durables, key=lambda save: -1.0 if save.boot is None else save.boot, default=None)
        weak_boot = self.state.last_weak_flush_boot
        durable_boot = durable.boot if durable else None
        return Progress(
            is_stop_in_force=self.is_stop_in_force(),
            is_flush_unanswered=self.waiting_flush() is not None,
            last_durable_at=None if durable_boot is None else now - timedelta(seconds=boot - durable_boot),
            last_stall_seconds=durable.stall_seconds if durable else 0.0,
            last_weak_flush_at=None if weak_boot is None else now - timedelta(seconds=boot - weak_boot),
        )

    def is_stop_in_force(self) -> bool:
        """Tell whether a stop has been ordered and not lifted."""
        return any(case.phase in STOP_PHASES for case in self.state.cases.values())

    def waiting_flush(self) -> Order | None:
        """Return the oldest flush order that is unanswered while one of its cases is still in force."""
        open_ids = {case.notice.id for case in self.open_cases()}
        waiting = None
        for order in self.state.orders:
            if order.do is Do.NONE:
                # Nobody works any more on what was asked before.
                waiting = None
            elif order.do is Do.FLUSH and not order.answer and open_ids.intersection(order.case_ids):
                waiting = waiting or order
        return waiting

    def last_order(self) -> Order | None:
        """Return the newest order."""
        return self.state.orders[-1] if self.state.orders else None

    def last_lift(self) -> Order | None:
        """Return the order that lifted the last stop, as long as no other stop has followed; else None."""
        newest_first = reversed(self.state.orders)
        order = next((order for order in newest_first if order.do is not Do.FLUSH), None)
        return order if order is not None and order.do is Do.NONE else None

    def measured_saves(self, run_id: str = "") -> list[MeasuredSave]:
        """Return the last saves of one run, oldest first, for the estimate.

        Args:
            run_id: empty: the run that saved last. Of a run that has not saved yet nothing is known, so that
                the saves of others may lengthen the estimate, and not shorten it.
        """
        saves = self.state.saves
        run_id = run_id or next((save.run_id for save in reversed(saves) if save.is_durable), "")
        own = [save for save in saves if save.run_id in (run_id, "")]
        if any(save.is_durable for save in own):
            return [save.measured() for save in own]
        return [replace(save.measured(), is_durable=False) for save in saves]


def _seconds_past(case: Case, *, now: datetime, boot: float) -> tuple[float, bool]:
    """Return the time since the case's end by the clock that is ahead, and whether it has been survived.

    A clock set forward must not make us believe that a machine has survived what is still to come.
    """
    end_boot = case.deadline_boot
    if end_boot is None:
        end_boot = case.first_seen_boot + (case.notice.window_seconds or 0.0)
    by_boot = boot - end_boot
    by_wall = by_boot if case.deadline is None else (now - case.deadline).total_seconds()
    # A time that was past at first sight shows a wrong clock, not that the machine has outlived it.
    latest = end_boot if case.end_boot is None else case.end_boot
    since = boot - max(end_boot, latest, case.first_seen_boot)
    has_survived = since >= SURVIVED_SECONDS and (
        by_wall >= SURVIVED_SECONDS or since >= SURVIVED_SECONDS + CLOCK_TRUST_SECONDS
    )
    return max(by_boot, by_wall), has_survived


def _is_long_over(case: Case, boot: float) -> bool:
    """Tell whether a pushed notice ended so long ago that its source has dropped it."""
    end_boot = case.first_seen_boot if case.deadline_boot is None else case.deadline_boot
    return boot - max(end_boot, case.first_seen_boot) >= PUSHED_SECONDS


def _is_other(instance: str, known: str) -> bool:
    """Tell whether these are two machines; names that two clouds give do not compare."""
    is_comparable = instance.partition(":")[0] == known.partition(":")[0]
    return bool(instance and known) and is_comparable and instance != known


def _facts(case: Case) -> dict[str, Any]:
    """Return what an event about the end of a case carries."""
    notice = case.notice
    return {
        "case": notice.id,
        "provider": notice.provider,
        "kind": notice.kind,
        "notice": notice.to_json(),
    }
