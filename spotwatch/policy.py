# SPDX-License-Identifier: Apache-2.0
"""What is to be done next, given all cases in force and the progress so far.

Pure: it reads no clock and no file, keeps nothing, and does not know how a step is carried out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from spotwatch.model import Certainty, Do, Evidence, Kind, Notice, Step

Response = Literal["ignore", "flush", "stop"]

QUIET_SECONDS = 600.0
"""No flush follows a durable save sooner than this, the first of a reclaim excepted."""
NEAR_SECONDS = 1800.0
"""Maintenance farther away than this is not acted upon beyond one flush at first sight."""
MEASURED_SAVES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How notices are answered; every duration in seconds."""

    mode: Literal["flush-then-stop", "flush-only", "stop-now"] = "flush-then-stop"
    save_seconds: float = 30.0
    """How long a save takes until durable saves have been measured."""
    safety_factor: float = 1.5
    stop_margin_seconds: float = 15.0
    target_margin_seconds: float = 900.0
    """Kept free before a deadline that is only a target."""
    reflush_seconds: float = 600.0
    unanswered_seconds: float = 600.0
    at_risk: Response = "flush"
    maintenance_live: Response = "flush"
    maintenance_ends: Response = "stop"
    ends_at: str = ""
    """RFC 3339: a known end of this machine; stops in time, no cloud signal needed."""
    drain_seconds: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSave:
    """One save as the daemon saw it."""

    seconds: float
    is_durable: bool
    """Re-read from the store by the library; False: a flag was removed, which proves less."""
    step_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseView:
    """What the plan needs to know of one case, in terms of the present wall clock."""

    notice: Notice
    first_seen_at: datetime
    deadline: datetime | None
    """The earliest that either clock gives, never beyond the cloud's window."""
    flushes: int = 0
    """Flush orders given for this case."""
    last_flush_at: datetime | None = None
    flush_first: bool | None = None
    """Decided once whether a flush fits before the stop; None: not decided yet."""
    is_stopped: bool = False
    """A stop order has been given for this case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the trainer was told and what it answered, over all cases."""

    is_stop_in_force: bool = False
    is_flush_unanswered: bool = False
    last_durable_at: datetime | None = None
    last_stall_seconds: float = 0.0
    last_weak_flush_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """At most the next flush and the stop; a step is due when its `at` has come."""

    flush: Step | None = None
    stop: Step | None = None
    decisions: dict[str, bool] = field(default_factory=dict)
    """`flush_first` of the cases for which it was decided now."""
    joins: tuple[str, ...] = ()
    """Cases that the stop already in force satisfies."""


def respond(notice: Notice, policy: Policy) -> Response:
    """Return what `notice` asks for under `policy`; weak evidence never stops."""
    wanted: Response
    if notice.do is not None:
        wanted = "stop" if notice.do is Do.STOP else "flush"
    elif notice.kind is Kind.RECLAIM:
        wanted = "stop"
    elif notice.kind is Kind.HIBERNATE:
        wanted = "flush"
    elif notice.kind is Kind.AT_RISK:
        wanted = policy.at_risk
    else:
        wanted = policy.maintenance_ends if notice.ends_machine else policy.maintenance_live
    if wanted == "stop" and (notice.evidence is Evidence.WEAK or policy.mode == "flush-only"):
        return "flush"
    return wanted


def estimate(policy: Policy, saves: Sequence[MeasuredSave], *, waited_seconds: float = 0.0) -> float:
    """Return how long the next save may take, in seconds.

    Args:
        policy: gives the value until something was measured.
        saves: of this run, oldest first; the last five count.
        waited_seconds: how long a flush has been unanswered; 0 when none is.
    """
    recent = saves[-MEASURED_SAVES:]
    durable = [save.seconds + save.step_seconds for save in recent if save.is_durable]
    removed = [save.seconds for save in recent if not save.is_durable]
    est = max(durable) if durable else policy.save_seconds
    if removed:
        # A removed flag may lengthen the estimate, but says too little to bring it below the setting.
        est = max(est, policy.save_seconds, *removed)
    return max(est, min(waited_seconds, policy.unanswered_seconds))


def margin(notice: Notice, policy: Policy, save_seconds: float) -> float:
    """Return how long before its deadline a stop goes out, in seconds."""
    reliable = save_seconds * policy.safety_factor + policy.stop_margin_seconds
    if notice.certainty is Certainty.TARGET:
        return max(reliable, policy.target_margin_seconds)
    return reliable


def plan(
    cases: Sequence[CaseView], policy: Policy, progress: Progress, *, now: datetime, save_seconds: float
) -> Plan:
    """Return the next steps for all cases together.

    Args:
        cases: those in force.
        policy: the user's wishes.
        progress: what has been ordered and answered.
        now: the present, aware.
        save_seconds: the estimate of `estimate`.
    """
    stops: list[tuple[datetime, CaseView]] = []
    flushes: list[tuple[datetime, CaseView]] = []
    decisions: dict[str, bool] = {}
    for case in cases:
        response = respond(case.notice, policy)
        if response == "ignore":
            continue
        stop_at, flush_first = _stop_time(case, policy, save_seconds)
        if case.flush_first is None and flush_first is not None:
            decisions[case.notice.id] = flush_first
        if response == "stop" and stop_at is not None:
            stops.append((stop_at, case))
        if response == "flush" or flush_first is not False:
            flush_at = _flush_time(case, policy, progress, stop_at, save_seconds)
            if flush_at is not None:
                flushes.append((flush_at, case))
    if progress.is_stop_in_force:
        joins = [c.notice.id for at, c in stops if not c.is_stopped and at <= now]
        return Plan(decisions=decisions, joins=tuple(joins))
    stop = _earliest_stop(stops)
    flush = _earliest_flush(flushes, policy, progress)
    if stop is not None and flush is not None and stop.at <= max(now, flush.at):
        flush = None
    return Plan(flush=flush, stop=stop, decisions=decisions)


def _acts_from(case: CaseView) -> datetime:
    """Return when the case counts as a reclaim: at once, or half an hour before far maintenance."""
    if case.notice.kind is Kind.MAINTENANCE and case.deadline is not None:
        return max(case.first_seen_at, case.deadline - timedelta(seconds=NEAR_SECONDS))
    return case.first_seen_at


def _stop_time(case: CaseView, policy: Policy, save_seconds: float) -> tuple[datetime | None, bool | None]:
    """Return when the stop is due (None: never), and whether a flush goes before it (None: no stop)."""
    notice = case.notice
    if respond(notice, policy) == "flush" and not (policy.mode == "flush-only" and case.deadline is not None):
        return None, None
    start = _acts_from(case)
    if case.deadline is None:
        if notice.kind is Kind.MAINTENANCE and not notice.has_started:
            # An event whose time cannot be read may be a week away: a stop would be a false one.
            return None, None
        return start, False
    if notice.certainty is Certainty.ESTIMATE:
        return start, False
    needed = margin(notice, policy, save_seconds)
    flush_first = case.flush_first
    if flush_first is None:
        fits = save_seconds + needed <= (case.deadline - start).total_seconds()
        flush_first = fits and not (policy.mode == "stop-now" and notice.kind is Kind.RECLAIM)
    if not flush_first:
        return start, False
    return max(start, case.deadline - timedelta(seconds=needed)), True


def _flush_time(
    case: CaseView, policy: Policy, progress: Progress, stop_at: datetime | None, save_seconds: float
) -> datetime | None:
    """Return when this case wants its next flush, None when it wants no more."""
    notice = case.notice
    if case.flushes == 0 or case.last_flush_at is None:
        return case.first_seen_at
    if stop_at is None or progress.is_flush_unanswered:
        return None
    if policy.mode == "flush-only" and case.last_flush_at < stop_at:
        # Where stops are not wanted, the last flush takes the stop's place.
        return stop_at
    start = _acts_from(case)
    if case.last_flush_at < start:
        return start
    if notice.certainty is not Certainty.TARGET:
        return None
    again = case.last_flush_at + timedelta(seconds=policy.reflush_seconds)
    # A flush so close to the stop would still be under way when the stop goes out.
    latest = stop_at - timedelta(seconds=save_seconds * (1 + policy.safety_factor))
    return again if again <= latest else None


def _earliest_stop(stops: Sequence[tuple[datetime, CaseView]]) -> Step | None:
    if not stops:
        return None
    at, governing = min(stops, key=lambda pair: (pair[0], pair[1].notice.id))
    near = at + timedelta(seconds=NEAR_SECONDS)
    covered = tuple(c.notice.id for when, c in stops if when <= near)
    return Step(
        at=at,
        do=Do.STOP,
        why=describe(governing.notice),
        deadline=governing.deadline,
        case_ids=(governing.notice.id, *(i for i in covered if i != governing.notice.id)),
    )


def _earliest_flush(
    flushes: Sequence[tuple[datetime, CaseView]], policy: Policy, progress: Progress
) -> Step | None:
    if not flushes:
        return None
    quiet = timedelta(
        seconds=max(min(QUIET_SECONDS, policy.reflush_seconds), 10 * progress.last_stall_seconds)
    )
    timed: list[tuple[datetime, CaseView]] = []
    for wanted, case in flushes:
        at = wanted
        is_first_of_reclaim = case.notice.kind is Kind.RECLAIM and case.flushes == 0
        is_weak = case.notice.evidence is Evidence.WEAK
        if progress.last_durable_at is not None and (is_weak or not is_first_of_reclaim):
            at = max(at, progress.last_durable_at + quiet)
        if is_weak and progress.last_weak_flush_at is not None:
            at = max(at, progress.last_weak_flush_at + timedelta(seconds=QUIET_SECONDS))
        timed.append((at, case))
    at, first = min(timed, key=lambda pair: (pair[0], pair[1].notice.id))
    together = [c.notice.id for when, c in timed if when <= at and c is not first]
    return Step(
        at=at,
        do=Do.FLUSH,
        why=describe(first.notice),
        deadline=first.deadline,
        case_ids=(first.notice.id, *together),
    )


def describe(notice: Notice) -> str:
    """Return a notice in a few words for people."""
    return f"{notice.provider} {notice.signal}: {notice.detail or notice.kind}"
