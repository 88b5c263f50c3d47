# SPDX-License-Identifier: Apache-2.0
"""What the ledger makes of answers: wrong clocks, times that slide, ids that clash, and what ends a case."""

from __future__ import annotations

from datetime import timedelta

import pytest

from spotwatch.model import Answer, Certainty, Do, Event, Evidence, Kind, Step
from spotwatch.state import KEPT_RUNS, State
from spotwatch.testing import EPOCH
from tests.ledger_bench import Bench


@pytest.fixture
def bench() -> Bench:
    """A bench on which nothing has happened."""
    return Bench()


class TestDeadlines:
    """A deadline is told as the cloud gave it."""

    @pytest.mark.parametrize("microseconds", [1, 120_457, 333_333, 999_999])
    @pytest.mark.parametrize("window_seconds", [None, 300.0])
    def test_it_is_the_clouds_own_moment(
        self, bench: Bench, microseconds: int, window_seconds: float | None
    ) -> None:
        """At whatever odd moment it was seen, to the microsecond, now and at the next order."""
        bench.clock.wall_offset_seconds = microseconds / 1e6
        notice = bench.notice(window_seconds=window_seconds)
        bench.see(notice)
        assert bench.ledger.views()[0].deadline == notice.deadline
        bench.clock.seconds = 17.123457
        bench.clock.wall_offset_seconds += 0.05  # slewed, as NTP does
        assert bench.ledger.views()[0].deadline == notice.deadline
        bench.clock.wall_offset_seconds -= 0.1
        assert bench.ledger.views()[0].deadline == notice.deadline

    def test_a_clock_that_was_set_back_is_seen_through(self, bench: Bench) -> None:
        """Beyond what slewing does, the boot clock counts."""
        bench.see(bench.notice())
        bench.clock.wall_offset_seconds = -30
        assert bench.ledger.views()[0].deadline == EPOCH + timedelta(seconds=90)


@pytest.mark.hostile(55)
class TestClocks:
    """A wrong clock loses no notice."""

    def test_a_clock_ahead_at_first_sight(self, bench: Bench) -> None:
        """Twenty minutes ahead, the deadline looks long past: not survived before ten minutes have passed."""
        bench.see()
        bench.clock.wall_offset_seconds = 1200
        answer = Answer(notices=(bench.notice(),), answered=frozenset({"s"}))
        bench.ledger.observe("aws", answer, absence_withdraws=True)
        bench.ledger.check_ends()
        bench.clock.seconds = 599
        bench.ledger.check_ends()
        assert len(bench.ledger.open_cases()) == 1
        bench.clock.seconds = 600
        bench.ledger.check_ends()
        assert bench.names()[-1] == "survived"

    def test_a_clock_set_forward_ends_no_case(self, bench: Bench) -> None:
        """A day forward in the window: due at once, but not survived until the boot clock says so."""
        bench.see(bench.notice())
        bench.clock.wall_offset_seconds = 86400
        bench.see(bench.notice())
        assert bench.ledger.views()[0].deadline == bench.notice().deadline
        bench.clock.seconds = 700
        bench.ledger.check_ends()
        assert "survived" not in bench.names()
        bench.clock.seconds = 721
        bench.ledger.check_ends()
        assert "survived" in bench.names()

    def test_a_clock_set_back_delays_the_end_by_an_hour_at_most(self, bench: Bench) -> None:
        """The boot clock alone counts an hour after it has said so."""
        bench.see(bench.notice())
        bench.clock.wall_offset_seconds = -86400
        bench.clock.seconds = 120 + 600 + 3599
        bench.ledger.check_ends()
        assert "survived" not in bench.names()
        bench.clock.seconds += 1
        bench.ledger.check_ends()
        assert "survived" in bench.names()

    @pytest.mark.parametrize(
        ("behind", "left"), [(3600.0, 20.0), (-3600.0, -3580.0), (2.0, 22.0), (0.0, 20.0)]
    )
    def test_our_clock_is_behind_the_cloud_s(self, bench: Bench, behind: float, left: float) -> None:
        """Twenty seconds by the server's own Date are twenty seconds, not the whole documented window."""
        bench.clock.wall_offset_seconds = -behind
        notice = bench.notice(20.0, window_seconds=120.0)
        answer = Answer(notices=(notice,), answered=frozenset({"s"}), server_at=EPOCH)
        bench.ledger.observe("aws", answer, absence_withdraws=True)
        (case,) = bench.ledger.open_cases()
        assert case.deadline_boot == pytest.approx(1000.0 + left)

    def test_our_clock_is_ahead_of_the_cloud_s(self, bench: Bench) -> None:
        """A day ahead, maintenance in two hours looks long past: it is not survived before it has come."""
        bench.clock.wall_offset_seconds = 86400
        bench.see(bench.notice(7200.0, kind=Kind.MAINTENANCE))
        for seconds, is_open in ((7200 + 599, True), (7200 + 600, False)):
            bench.clock.seconds = seconds
            bench.restart()
            bench.ledger.check_ends()
            assert bool(bench.ledger.open_cases()) is is_open

    def test_the_same_time_again_is_no_earlier_one(self, bench: Bench) -> None:
        """A clock that jumps between two answers re-plans nothing."""
        notice = bench.notice(86400, kind=Kind.MAINTENANCE)
        bench.see(notice)
        bench.clock.wall_offset_seconds = 7200
        bench.see(notice)
        assert "notice_changed" not in bench.names()


class TestTimes:
    """Sliding, later, missing times."""

    def test_sliding_is_remembered_over_a_restart(self, bench: Bench) -> None:
        """A survived notice that still slides is not taken for a new reclaim by the next life."""
        for second in range(800):
            bench.clock.seconds = second
            bench.see(bench.notice(second + 120.0))
            bench.ledger.check_ends()
        bench.restart()
        bench.see(bench.notice(1100.0))
        assert bench.ledger.open_cases() == []
        assert bench.names().count("time_given") == 2

    @pytest.mark.parametrize("first", [120.0, None])
    def test_a_new_time_after_survival_is_a_new_case(self, bench: Bench, first: float | None) -> None:
        """Also where the first notice gave no time at all, and also in the next life."""
        bench.see(bench.notice(first))
        bench.clock.seconds = 721
        bench.ledger.check_ends()
        bench.restart()
        assert bench.ledger.open_cases() == []
        bench.see(bench.notice(1000.0))
        assert len(bench.ledger.open_cases()) == 1

    def test_maintenance_without_a_readable_time_stays(self, bench: Bench) -> None:
        """It may be a week away: it is not survived, and its time counts when it can be read."""
        bench.see(bench.notice(None, kind=Kind.MAINTENANCE))
        bench.clock.seconds = 5000
        bench.ledger.check_ends()
        assert len(bench.ledger.open_cases()) == 1
        bench.see(bench.notice(9000.0, kind=Kind.MAINTENANCE))
        deadline = bench.ledger.open_cases()[0].deadline
        assert deadline == EPOCH + timedelta(seconds=9000)

    def test_a_graver_notice_without_a_time_waits_for_none(self, bench: Bench) -> None:
        """Maintenance in an hour becomes a reclaim that gives no time: the old time is dropped."""
        bench.see(bench.notice(3600.0, kind=Kind.MAINTENANCE))
        bench.see(bench.notice(None))
        assert bench.ledger.views()[0].deadline is None

    def test_weak_becomes_strong(self, bench: Bench) -> None:
        """Proof that comes later is taken over, and stays."""
        bench.see(bench.notice(evidence=Evidence.WEAK))
        bench.see(bench.notice())
        bench.see(bench.notice(evidence=Evidence.WEAK))
        assert bench.ledger.open_cases()[0].notice.evidence is Evidence.STRONG

    def test_a_later_time_changes_nothing(self, bench: Bench) -> None:
        """For one id the earliest time counts."""
        bench.see(bench.notice(100.0))
        bench.see(bench.notice(110.0))
        assert bench.ledger.open_cases()[0].deadline == EPOCH + timedelta(seconds=100)
        assert "notice_changed" not in bench.names()


class TestIds:
    """Names of notices and machines."""

    def test_two_providers_with_the_same_id(self, bench: Bench) -> None:
        """Each has its own case; when one withdraws, the other's stays, under its own name."""
        bench.see(bench.notice())
        for second in range(5):
            bench.clock.seconds = second
            bench.see(bench.notice(provider="other"), provider="other")
            bench.see()
        (case,) = bench.ledger.open_cases()
        assert case.notice.provider == "other"
        assert bench.names().count("noticed") == 2
        bench.see(bench.notice(provider="other"), provider="other")
        assert bench.names().count("noticed") == 2

    def test_names_of_two_clouds_do_not_compare(self, bench: Bench) -> None:
        """A second provider that names this machine in its own words does not close its cases."""
        bench.ledger.settle_identity("aws:i-1")
        bench.see(bench.notice())
        assert bench.ledger.settle_identity("digitalocean:17") == []
        assert bench.ledger.settle_identity("aws:i-2") == ["i"]


class TestPushed:
    """Notices that no absence withdraws."""

    @pytest.mark.parametrize("kind", [Kind.RECLAIM, Kind.AT_RISK])
    def test_over_an_hour_after_the_deadline(self, bench: Bench, kind: Kind) -> None:
        """What its source has dropped by then is dropped here, so that nothing is kept for ever."""
        bench.see(bench.notice(kind=kind), withdraws=False)
        bench.clock.seconds = 120 + 3599
        bench.ledger.check_ends()
        bench.see(withdraws=False)
        assert list(bench.ledger.state.cases) == ["i"]
        bench.clock.seconds += 1
        bench.see(withdraws=False)
        assert bench.ledger.state.cases == {}

    def test_weak_notices_share_one_rate(self, bench: Bench) -> None:
        """A weak case that is over still counts against the next one's flush."""
        bench.see()
        bench.see(bench.notice(-900.0, evidence=Evidence.WEAK))
        step = Step(at=EPOCH, do=Do.FLUSH, why="", case_ids=("i",))
        bench.ledger.order(step, 1, procs={})
        bench.clock.seconds = 601
        bench.ledger.check_ends()
        assert bench.ledger.open_cases() == []
        assert bench.ledger.progress().last_weak_flush_at == EPOCH

    def test_a_weak_notice_that_was_taken_back_still_counts(self, bench: Bench) -> None:
        """Its case is forgotten, also over a snapshot; that the trainer has saved for it is not."""
        bench.see()
        bench.see(bench.notice(evidence=Evidence.WEAK))
        bench.ledger.order(Step(at=EPOCH, do=Do.FLUSH, why="", case_ids=("i",)), 1, procs={})
        answer = Answer(answered=frozenset({"s"}), cancelled=frozenset({"i"}))
        bench.ledger.observe("aws", answer, absence_withdraws=False)
        assert bench.ledger.state.cases == {}
        assert bench.ledger.progress().last_weak_flush_at == EPOCH
        again = State(boot_id="")
        again.apply(Event(at=EPOCH, name="snapshot", data=bench.ledger.state.snapshot()))
        assert again.last_weak_flush_boot == bench.ledger.state.last_weak_flush_boot


class TestSaves:
    """What the estimate is made of."""

    def save(self, bench: Bench, run_id: str, seconds: float) -> None:
        """Record a durable save."""
        bench.ledger.record("saved", run_id=run_id, seconds=seconds, is_durable=True, boot=1.0, step=1)

    def test_five_of_each_run(self, bench: Bench) -> None:
        """A trainer that saves often does not push out what is known of a slow one."""
        self.save(bench, "slow", 200)
        for _ in range(20):
            self.save(bench, "quick", 1)
        assert [save.seconds for save in bench.ledger.measured_saves("slow")] == [200]
        assert [save.seconds for save in bench.ledger.measured_saves("quick")] == [1] * 5

    def test_others_may_only_lengthen(self, bench: Bench) -> None:
        """Of a run that has not saved, nothing measured may bring the estimate below the setting."""
        self.save(bench, "old", 1)
        assert [save.is_durable for save in bench.ledger.measured_saves("new")] == [False]
        assert [save.is_durable for save in bench.ledger.measured_saves()] == [True]

    def test_runs_are_not_kept_for_ever(self, bench: Bench) -> None:
        """As many as may report at once: those that saved last."""
        for number in range(KEPT_RUNS + 26):
            self.save(bench, f"run-{number}", 1)
        kept = {f"run-{n}" for n in range(26, KEPT_RUNS + 26)}
        assert {save.run_id for save in bench.ledger.state.saves} == kept

    def test_the_last_durable_save_is_the_last_one_made(self, bench: Bench) -> None:
        """Not the last one recorded: of two trainers' files the one that is read later may be the older."""
        for run_id, boot, stall in (("new", 990.0, 1.0), ("old", 100.0, 2.0), ("boot-0", None, 3.0)):
            bench.ledger.record(
                "saved", run_id=run_id, seconds=1, is_durable=True, boot=boot, step=1, stall_seconds=stall
            )
        progress = bench.ledger.progress()
        assert progress.last_durable_at == EPOCH - timedelta(seconds=10)
        assert progress.last_stall_seconds == 1.0


def test_a_failing_listener_stops_nobody(bench: Bench) -> None:
    """Who listens after it hears all the same, and the failure is told once."""

    def fail(_: Event) -> None:
        raise OSError("disk full")

    heard: list[str] = []
    bench.ledger.subscribe(fail)
    bench.ledger.subscribe(lambda event: heard.append(event.name))
    bench.ledger.record("missed_nothing")
    assert heard == ["missed_nothing", "unexpected"]


def test_a_lifted_flush_is_not_waited_for(bench: Bench) -> None:
    """After `none` nobody works on what was asked before, so that it lengthens no estimate."""
    bench.see(bench.notice(7200.0, certainty=Certainty.TARGET))
    for seq, do in enumerate((Do.FLUSH, Do.NONE), 1):
        assert (bench.ledger.waiting_flush() is None) is (do is Do.FLUSH)
        bench.ledger.order(Step(at=EPOCH, do=do, why="", case_ids=("i",)), seq, procs={})
    assert bench.ledger.waiting_flush() is None


@pytest.mark.parametrize("restarts", [False, True])
def test_a_graver_kind_begins_anew(bench: Bench, restarts: bool) -> None:
    """A hibernation of an hour ago that becomes a reclaim: its window begins now, in each life."""
    bench.see(bench.notice(None, kind=Kind.HIBERNATE, ends_machine=False))
    bench.ledger.order(Step(at=EPOCH, do=Do.FLUSH, why="", case_ids=("i",)), 1, procs={})
    bench.clock.seconds = 3600
    bench.see(bench.notice(3720.0))
    if restarts:
        bench.restart()
    (case,) = bench.ledger.open_cases()
    assert (case.flushes, case.first_seen_boot) == (0, 4600.0)


def test_live_and_replayed_are_the_same(bench: Bench) -> None:
    """Rows alone give the state that lived, slides, orders, receivers and all."""
    bench.see(bench.notice())
    order = bench.ledger.order(Step(at=EPOCH, do=Do.STOP, why="w", case_ids=("i",)), 1, procs={})
    proc = {"pid": 5, "start_ticks": 1, "uid": 0, "gid": 0, "command": "x"}
    for receiver, procs in (("handshake", []), ("child", [proc])):
        bench.ledger.record("told", seq=1, receiver=receiver, procs=procs)
    bench.ledger.record("files_lost", seq=1, receivers=["handshake"])
    assert order.told == ["child"]
    assert order.procs == {"child": [proc]}
    bench.see(bench.notice(130.0))
    before = bench.ledger.state.snapshot()
    bench.restart()
    assert bench.ledger.state.snapshot() == before
