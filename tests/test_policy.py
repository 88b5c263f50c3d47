# SPDX-License-Identifier: Apache-2.0
"""What is to be done next, row by row of the table that users read."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from spotwatch.model import Certainty, Do, Evidence, Kind, Notice
from spotwatch.policy import CaseView, MeasuredSave, Policy, Progress, estimate, plan, respond
from spotwatch.testing import EPOCH

NOW = EPOCH


def later(seconds: float) -> datetime:
    """Return the moment `seconds` after now."""
    return NOW + timedelta(seconds=seconds)


def notice(kind: Kind = Kind.RECLAIM, **changes: object) -> Notice:
    """Return a notice with these fields."""
    base = Notice(id="n", provider="p", signal="s", kind=kind, seen_at=NOW)
    return replace(base, **changes)  # type: ignore[arg-type]


def view(seconds: float | None, kind: Kind = Kind.RECLAIM, **changes: object) -> CaseView:
    """Return a case seen now whose deadline is in `seconds`."""
    fields = {k: changes.pop(k) for k in list(changes) if k in CaseView.__slots__}
    deadline = None if seconds is None else later(seconds)
    made = CaseView(notice=notice(kind, deadline=deadline, **changes), first_seen_at=NOW, deadline=deadline)
    return replace(made, **fields)  # type: ignore[arg-type]


def at(*cases: CaseView, policy: Policy | None = None, progress: Progress | None = None, est: float = 30.0):  # type: ignore[no-untyped-def]  # noqa: ANN201
    """Return the seconds from now of (flush, stop), None where there is none."""
    made = plan(cases, policy or Policy(), progress or Progress(), now=NOW, save_seconds=est)
    return tuple(
        None if step is None else (step.at - NOW).total_seconds() for step in (made.flush, made.stop)
    )


class TestReclaim:
    """A machine that is taken away."""

    def test_flush_first_then_stop_in_time(self) -> None:
        """Two minutes and a 13.7 s save: flush at once, stop as late as is safe."""
        assert at(view(120), est=13.7) == (0, pytest.approx(120 - 13.7 * 1.5 - 15))

    def test_no_time_for_both(self) -> None:
        """A save that fills the window leaves room for one only: stop at once."""
        assert at(view(120), est=84) == (None, 0)

    def test_the_border_belongs_to_the_flush(self) -> None:
        """Est x (1 + safety) + margin equal to the window still fits."""
        assert at(view(90), est=30)[0] == 0
        assert at(view(89.9), est=30) == (None, 0)

    @pytest.mark.parametrize("certainty", list(Certainty))
    def test_without_a_time_it_stops_at_once(self, certainty: Certainty) -> None:
        """No deadline: every second may be the last."""
        assert at(view(None, certainty=certainty)) == (None, 0)

    def test_an_estimate_stops_at_once(self) -> None:
        """GCP's and Azure Preempt's times are best effort, often shorter: they are not waited for."""
        assert at(view(150, certainty=Certainty.ESTIMATE), est=1) == (None, 0)

    def test_a_target_keeps_its_margin(self) -> None:
        """Two hours by mail: flush at once, stop a quarter of an hour before."""
        assert at(view(7200, certainty=Certainty.TARGET), est=30) == (0, 6300)

    def test_a_target_is_flushed_again(self) -> None:
        """Every reflush_seconds, until a flush would collide with the stop."""
        case = view(7200, certainty=Certainty.TARGET, flush_first=True, flushes=1, last_flush_at=NOW)
        assert at(case) == (600, 6300)
        late = replace(case, last_flush_at=later(5700))
        assert at(late) == (None, 6300)

    def test_no_second_flush_while_one_is_unanswered(self) -> None:
        """A trainer that does not answer is not asked again and again."""
        case = view(7200, certainty=Certainty.TARGET, flush_first=True, flushes=1, last_flush_at=NOW)
        assert at(case, progress=Progress(is_flush_unanswered=True)) == (None, 6300)

    def test_the_first_flush_of_a_reclaim_is_never_held_back(self) -> None:
        """A save a minute ago does not count against it."""
        progress = Progress(last_durable_at=later(-60))
        assert at(view(7200, certainty=Certainty.TARGET), progress=progress)[0] == 0

    def test_weak_evidence_never_stops(self) -> None:
        """What is not proven may cost a save, not the run."""
        assert at(view(120, evidence=Evidence.WEAK)) == (0, None)

    def test_weak_evidence_is_rate_limited(self) -> None:
        """A forged stream must not make the trainer save all the time."""
        progress = Progress(last_weak_flush_at=later(-60), last_durable_at=later(-59))
        assert at(view(120, evidence=Evidence.WEAK), progress=progress) == (541, None)

    def test_a_past_deadline_stops_at_once(self) -> None:
        """A clock that is ahead must not keep us waiting for yesterday."""
        assert at(view(-5)) == (None, 0)

    def test_the_decision_is_kept(self) -> None:
        """A longer estimate moves the stop forward, it does not undo the flush."""
        case = view(120, flush_first=True, flushes=1, last_flush_at=NOW)
        assert at(case, est=40) == (None, 45)
        assert at(case, est=90) == (None, 0)


class TestModes:
    """The user's wishes."""

    def test_flush_only_never_stops(self) -> None:
        """Flush at once, and once more where the stop would have been."""
        policy = Policy(mode="flush-only")
        assert at(view(7200, certainty=Certainty.TARGET), policy=policy) == (0, None)
        case = view(7200, certainty=Certainty.TARGET, flush_first=True, flushes=1, last_flush_at=NOW)
        assert at(case, policy=policy) == (6300, None)

    def test_stop_now_waits_for_nothing(self) -> None:
        """A reclaim stops at once; maintenance next week does not."""
        policy = Policy(mode="stop-now")
        assert at(view(7200, certainty=Certainty.TARGET), policy=policy) == (None, 0)
        assert at(view(7 * 86400, Kind.MAINTENANCE), policy=policy)[0] == 0

    @pytest.mark.parametrize(
        ("kind", "key"), [(Kind.AT_RISK, "at_risk"), (Kind.MAINTENANCE, "maintenance_live")]
    )
    def test_ignore_flush_stop(self, kind: Kind, key: str) -> None:
        """Each milder notice can be ignored, flushed or stopped for."""
        case = view(None, kind, ends_machine=False, has_started=True)
        answers = [at(case, policy=replace(Policy(), **{key: r})) for r in ("ignore", "flush", "stop")]  # type: ignore[arg-type]
        assert answers == [(None, None), (0, None), (None, 0)]

    def test_a_hand_made_notice_says_itself_what_to_do(self) -> None:
        """`trigger flush` flushes, `trigger stop` stops, whatever the policy for clouds is."""
        assert respond(notice(Kind.AT_RISK, do=Do.STOP), Policy(at_risk="ignore")) == "stop"
        assert respond(notice(Kind.RECLAIM, do=Do.FLUSH), Policy()) == "flush"


class TestOtherKinds:
    """What does not take the machine away, or not yet."""

    def test_hibernate_flushes_and_goes_on(self) -> None:
        """Memory is kept, and there are no two minutes."""
        assert at(view(None, Kind.HIBERNATE, ends_machine=False)) == (0, None)

    def test_at_risk_flushes_once(self) -> None:
        """A rebalance recommendation may never become an interruption."""
        assert at(view(None, Kind.AT_RISK)) == (0, None)
        assert at(view(None, Kind.AT_RISK, flushes=1, last_flush_at=later(-9999))) == (None, None)

    def test_at_risk_waits_out_a_recent_save(self) -> None:
        """Nothing is gained by saving again within ten minutes."""
        progress = Progress(last_durable_at=later(-60))
        assert at(view(None, Kind.AT_RISK), progress=progress) == (540, None)
        slow = Progress(last_durable_at=later(-60), last_stall_seconds=90)
        assert at(view(None, Kind.AT_RISK), progress=slow) == (840, None)

    def test_far_maintenance(self) -> None:
        """A week ahead: a flush at sight, one half an hour before, the stop in time, nothing between."""
        week = 7 * 86400.0
        seen = view(week, Kind.MAINTENANCE)
        assert at(seen) == (0, week - 60)
        flushed = replace(seen, flush_first=True, flushes=1, last_flush_at=NOW)
        assert at(flushed) == (week - 1800, week - 60)
        near = replace(flushed, flushes=2, last_flush_at=later(week - 1800))
        assert at(near) == (None, week - 60)

    def test_maintenance_whose_time_cannot_be_read_flushes(self) -> None:
        """It may be a week away: a stop would be a false one."""
        assert at(view(None, Kind.MAINTENANCE)) == (0, None)


class TestTogether:
    """All cases share one trainer."""

    def test_the_earliest_stop_governs(self) -> None:
        """And covers every case whose own stop is near."""
        a, b = view(300), view(200)
        b = replace(b, notice=replace(b.notice, id="b"))
        made = plan([a, b], Policy(), Progress(), now=NOW, save_seconds=10)
        assert made.stop is not None
        assert made.stop.deadline == later(200)
        assert set(made.stop.case_ids) == {"n", "b"}

    def test_a_far_case_is_not_covered(self) -> None:
        """When the near one is withdrawn, maintenance next week must not keep the GPU idle."""
        far = view(7 * 86400, Kind.MAINTENANCE)
        far = replace(far, notice=replace(far.notice, id="far"))
        made = plan([view(100), far], Policy(), Progress(), now=NOW, save_seconds=10)
        assert made.stop is not None
        assert made.stop.case_ids == ("n",)

    def test_one_flush_for_all(self) -> None:
        """Two notices at once are one save."""
        a, b = view(None, Kind.AT_RISK), view(300)
        b = replace(b, notice=replace(b.notice, id="b"))
        made = plan([a, b], Policy(), Progress(), now=NOW, save_seconds=10)
        assert made.flush is not None
        assert set(made.flush.case_ids) == {"n", "b"}

    def test_nothing_more_after_a_stop(self) -> None:
        """A case that is due joins the stop in force; no flush follows."""
        made = plan([view(10)], Policy(), Progress(is_stop_in_force=True), now=NOW, save_seconds=30)
        assert (made.flush, made.stop, made.joins) == (None, None, ("n",))


class TestEstimate:
    """How long the next save may take."""

    def test_until_something_is_measured(self) -> None:
        """The setting counts."""
        assert estimate(Policy(save_seconds=30), []) == 30

    def test_durable_saves_replace_the_setting(self) -> None:
        """The worst of the last five, one step time included; older ones are forgotten."""
        saves = [MeasuredSave(seconds=99, is_durable=True)]
        saves += [MeasuredSave(seconds=s, is_durable=True, step_seconds=0.5) for s in (5, 7, 6, 5, 5)]
        assert estimate(Policy(save_seconds=30), saves) == 7.5

    def test_a_removed_flag_never_shortens(self) -> None:
        """It proves too little; but it may lengthen."""
        assert estimate(Policy(save_seconds=30), [MeasuredSave(seconds=2, is_durable=False)]) == 30
        assert estimate(Policy(save_seconds=30), [MeasuredSave(seconds=50, is_durable=False)]) == 50

    def test_waiting_lengthens_up_to_a_limit(self) -> None:
        """A flush unanswered for a minute takes at least a minute."""
        policy = Policy(save_seconds=30, unanswered_seconds=600)
        assert estimate(policy, [], waited_seconds=61) == 61
        assert estimate(policy, [], waited_seconds=9999) == 600
