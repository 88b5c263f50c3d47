# SPDX-License-Identifier: Apache-2.0
"""Whole reclaims in virtual time: what is ordered when, what counts as an answer, and what ends it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spotwatch.config import Release
from spotwatch.errors import Unavailable
from spotwatch.model import Certainty, Do, Evidence, Kind
from spotwatch.policy import Policy
from spotwatch.testing import run_virtual
from tests.world import World

Story = Callable[[World], Coroutine[Any, Any, None]]


def play(folder: Path, story: Story, policy: Policy | None = None) -> World:
    """Run a story on a new machine, and return the machine."""

    async def main() -> World:
        world = World(folder, policy)
        await story(world)
        return world

    return run_virtual(main())


class TestOrders:
    """From the notice to the order."""

    def test_flush_then_stop(self, tmp_path: Path) -> None:
        """Two minutes: flush at once, stop in time, one signal, draining only from the stop on."""

        async def story(world: World) -> None:
            await world.live(3, trainer=world.obedient_trainer)
            world.announce()
            await world.poll()
            await world.runner.tick()
            assert world.flag().exists()
            order = world.order()
            assert order is not None
            assert (order.do, order.provider) == (Do.FLUSH, "aws")
            await world.live(80, trainer=world.obedient_trainer)
            assert not world.is_draining()
            await world.live(25, trainer=world.obedient_trainer)
            assert world.is_draining()

        world = play(tmp_path, story)
        assert world.orders() == ["flush", "stop"]
        assert len(world.target.signals) == 1

    def test_the_stop_waits_as_long_as_is_safe(self, tmp_path: Path) -> None:
        """A measured save of 2 s and a step of half a second: deadline minus 2.5 x 1.5 + 15 s."""

        async def story(world: World) -> None:
            await world.live(1, trainer=world.obedient_trainer)
            world.announce()
            await world.live(118, trainer=world.obedient_trainer)

        world = play(tmp_path, story)
        notice = world.in_force["i"]
        assert notice.deadline is not None
        left = (notice.deadline - world.target.signals[0]).total_seconds()
        assert 2.5 * 1.5 + 15 - 1.5 < left <= 2.5 * 1.5 + 15

    def test_weak_evidence_flushes_only(self, tmp_path: Path) -> None:
        """What is not proven never becomes a signal."""

        async def story(world: World) -> None:
            world.announce(evidence=Evidence.WEAK)
            await world.live(200)

        world = play(tmp_path, story)
        assert world.orders()[0] == "flush"
        assert world.target.signals == []

    def test_weak_evidence_that_becomes_strong(self, tmp_path: Path) -> None:
        """Flushed while it was weak; with the proof the stop is planned, once."""

        async def story(world: World) -> None:
            world.announce(evidence=Evidence.WEAK)
            await world.live(20, trainer=world.obedient_trainer)
            world.in_force["i"] = replace(world.in_force["i"], evidence=Evidence.STRONG)
            await world.live(99, trainer=world.obedient_trainer)

        world = play(tmp_path, story)
        assert world.orders() == ["flush", "stop"]
        assert len(world.target.signals) == 1

    @pytest.mark.parametrize(
        ("do", "seconds", "orders"),
        [
            (Do.FLUSH, None, ["flush"]),
            (Do.FLUSH, 60, ["flush"]),
            (Do.STOP, None, ["stop"]),
            (Do.STOP, 110, ["flush", "stop"]),
        ],
    )
    def test_by_hand(self, tmp_path: Path, do: Do, seconds: float | None, orders: list[str]) -> None:
        """A hand-made notice says itself what is to be done; with a time a stop has a flush before it."""

        async def story(world: World) -> None:
            world.announce(seconds=seconds, do=do, window_seconds=None)
            await world.live(105, trainer=world.obedient_trainer)

        assert play(tmp_path, story).orders() == orders

    def test_no_target(self, tmp_path: Path) -> None:
        """Without anybody to signal, order, draining and the flag carry the stop."""

        async def story(world: World) -> None:
            world.has_target = False
            world.boot()
            world.announce(seconds=None)
            await world.live(2)
            assert world.is_draining()
            assert world.flag().exists()

        assert play(tmp_path, story).orders() == ["stop"]

    def test_a_target_that_comes_late(self, tmp_path: Path) -> None:
        """A trainer that is restarting is signalled when it appears, and the flag is up meanwhile."""

        async def story(world: World) -> None:
            world.target.is_there = False
            world.announce(seconds=None)
            await world.live(5)
            assert world.flag().exists()
            assert world.target.signals == []
            world.target.is_there = True
            await world.live(3)

        world = play(tmp_path, story)
        assert len(world.target.signals) == 1
        failures = [e for e in world.events("acted") if e.data["result"] == "failed"]
        assert len(failures) == 1, "one line for one state, not one a tick"

    def test_sliding_time_is_one_case(self, tmp_path: Path) -> None:
        """A time that moves with every poll: one flush, one stop, at the earliest time seen."""

        async def story(world: World) -> None:
            first = world.announce()
            for _ in range(119):
                await world.live(1, trainer=world.obedient_trainer)
                slid = world.in_force["i"].deadline
                assert slid is not None
                world.in_force["i"] = replace(first, deadline=slid + timedelta(seconds=1))

        world = play(tmp_path, story)
        assert world.orders() == ["flush", "stop"]
        assert len(world.events("noticed")) == 1

    def test_an_earlier_time_replans_once(self, tmp_path: Path) -> None:
        """The stop moves forward, and the change is told once."""

        async def story(world: World) -> None:
            world.announce(seconds=118)
            await world.live(5, trainer=world.obedient_trainer)
            world.announce(seconds=60)
            await world.live(50, trainer=world.obedient_trainer)

        world = play(tmp_path, story)
        assert [e.data["replans"] for e in world.events("notice_changed")] == [1]
        assert world.orders() == ["flush", "stop"]
        assert (world.target.signals[0] - world.clock.start).total_seconds() < 50

    def test_stop_becomes_terminate(self, tmp_path: Path) -> None:
        """A more final action under the same id re-plans once and orders nothing twice."""

        async def story(world: World) -> None:
            world.announce(is_final=False)
            await world.live(5, trainer=world.obedient_trainer)
            world.in_force["i"] = replace(world.in_force["i"], is_final=True)
            await world.live(110, trainer=world.obedient_trainer)

        world = play(tmp_path, story)
        assert [e.data["replans"] for e in world.events("notice_changed")] == [1]
        assert world.orders() == ["flush", "stop"]

    def test_hibernate_becomes_a_reclaim(self, tmp_path: Path) -> None:
        """First flush and go on; when it turns into a termination, that one's window begins: flush, stop."""

        async def story(world: World) -> None:
            world.announce(kind=Kind.HIBERNATE, seconds=None, ends_machine=False)
            await world.live(5, trainer=world.obedient_trainer)
            world.announce(seconds=110)
            await world.live(100, trainer=world.obedient_trainer)

        world = play(tmp_path, story)
        assert world.orders() == ["flush", "flush", "stop"]

    def test_rebalance_then_interruption(self, tmp_path: Path) -> None:
        """At risk flushes; the interruption after it is not held back by that save."""

        async def story(world: World) -> None:
            world.announce("r", kind=Kind.AT_RISK, seconds=None, ends_machine=False, signal="risk")
            await world.live(10, trainer=world.obedient_trainer)
            world.announce()
            await world.live(110, trainer=world.obedient_trainer)

        assert play(tmp_path, story).orders() == ["flush", "flush", "stop"]

    def test_two_hours(self, tmp_path: Path) -> None:
        """A mail's window: flushed every ten minutes, stopped a quarter of an hour before the target."""

        async def story(world: World) -> None:
            world.announce(seconds=7200, certainty=Certainty.TARGET, window_seconds=7200.0)
            await world.live(6400, trainer=world.obedient_trainer, step=5)

        world = play(tmp_path, story)
        assert world.orders() == ["flush"] * 11 + ["stop"]
        assert (world.target.signals[0] - world.clock.start).total_seconds() == pytest.approx(6300, abs=6)

    def test_a_wrong_clock_cannot_delay_the_stop(self, tmp_path: Path) -> None:
        """Our clock two minutes slow: the cloud's documented window still bounds the wait."""

        async def story(world: World) -> None:
            world.announce(seconds=240)
            await world.live(119, trainer=world.obedient_trainer)

        assert play(tmp_path, story).orders() == ["flush", "stop"]

    def test_a_clock_set_back_cannot_delay_the_stop(self, tmp_path: Path) -> None:
        """NTP steps the clock back an hour in the window: the boot clock still counts."""

        async def story(world: World) -> None:
            world.announce()
            await world.live(5)
            world.clock.wall_offset_seconds = -3600
            await world.live(110)

        assert play(tmp_path, story).orders() == ["flush", "stop"]


class TestAnswers:
    """What counts as an answer."""

    def test_durable(self, tmp_path: Path) -> None:
        """Only `saved.seq` of a fresh library trainer counts, not its removed flag."""

        async def story(world: World) -> None:
            world.announce()
            world.report()
            await world.live(2, trainer=world.report)
            world.remove_flag()
            await world.live(2, trainer=world.report)
            assert world.events("answered") == []
            await world.live(1, trainer=world.obedient_trainer)

        world = play(tmp_path, story)
        assert [e.data["answer"] for e in world.events("answered")] == ["durable"]

    def test_a_restored_checkpoint_measures_nothing(self, tmp_path: Path) -> None:
        """A resumed trainer reports what it restored with 0 s: the estimate stays the setting."""

        async def story(world: World) -> None:
            restored = functools.partial(world.report, saved_seq=0, step=7, save_seconds=0.0)
            await world.live(3, trainer=restored)
            assert world.runner.estimate_seconds() == 10

        assert play(tmp_path, story).events("saved") == []

    def test_acknowledged(self, tmp_path: Path) -> None:
        """A script that only removes the flag acknowledges."""

        async def story(world: World) -> None:
            world.announce()
            await world.live(7)
            world.remove_flag()
            await world.live(2)

        world = play(tmp_path, story)
        assert [e.data["answer"] for e in world.events("answered")] == ["acknowledged"]

    def test_a_flush_while_one_is_pending(self, tmp_path: Path) -> None:
        """The new order is in order.json at once, its flag follows when the pending one is removed."""

        async def story(world: World) -> None:
            world.announce("r", kind=Kind.AT_RISK, seconds=None, ends_machine=False, signal="risk")
            await world.live(1)
            first = world.flag().read_bytes()
            world.announce()
            await world.live(1)
            order = world.order()
            assert order is not None
            assert order.seq == 2
            assert world.flag().read_bytes() == first
            world.remove_flag()
            await world.live(1)
            assert b'"seq": 2' in world.flag().read_bytes()
            world.remove_flag()
            await world.live(1)

        world = play(tmp_path, story)
        assert [e.data["seq"] for e in world.events("answered")] == [2]

    def test_a_deadline_missed(self, tmp_path: Path) -> None:
        """Nobody answers: missed, once, and told."""

        async def story(world: World) -> None:
            world.announce()
            await world.live(130)

        world = play(tmp_path, story)
        assert len(world.events("missed")) == 1
        assert ("missed", "i") in world.listener.heard

    def test_a_late_notice_is_not_missed_at_once(self, tmp_path: Path) -> None:
        """Its deadline is past when it is first seen: the trainer still gets its chance, and takes it."""

        async def story(world: World) -> None:
            await world.live(3, trainer=world.obedient_trainer)
            world.announce(seconds=-5)
            await world.live(40, trainer=world.obedient_trainer)

        world = play(tmp_path, story)
        assert world.events("missed") == []
        assert [e.data["answer"] for e in world.events("answered")] == ["durable"]

    def test_a_late_notice_that_nobody_answers(self, tmp_path: Path) -> None:
        """Half a minute later it is missed after all."""

        async def story(world: World) -> None:
            await world.live(3)
            world.announce(seconds=-5)
            await world.live(28)
            assert world.events("missed") == []
            await world.live(4)

        assert len(play(tmp_path, story).events("missed")) == 1

    def test_tellers_hear_once(self, tmp_path: Path) -> None:
        """The notice and the save are each told once a case."""

        async def story(world: World) -> None:
            world.announce()
            await world.live(119, trainer=world.obedient_trainer)

        assert play(tmp_path, story).listener.heard == [("notice", "i"), ("saved", "i")]

    def test_a_stop_is_seen_before_it_is_signalled(self, tmp_path: Path) -> None:
        """A fresh library trainer gets a moment to say `seen`; the signal comes all the same."""

        async def story(world: World) -> None:
            world.report()
            world.announce(seconds=None)
            await world.poll()
            await world.runner.tick()
            assert len(world.target.signals) == 1

        world = play(tmp_path, story)
        waited = (world.target.signals[0] - world.clock.start).total_seconds()
        assert waited == pytest.approx(2.0, abs=0.1)


class TestEnds:
    """Withdrawn, survived, released."""

    def test_withdrawn_after_the_stop(self, tmp_path: Path) -> None:
        """Three good answers over three seconds without it: draining lifted, `none`, started again."""

        async def story(world: World) -> None:
            world.target.on_signal = world.target.leave
            world.announce()
            await world.live(119, trainer=world.obedient_trainer)
            assert world.is_draining()
            del world.in_force["i"]
            await world.live(2)
            assert world.is_draining()
            await world.live(3)
            assert not world.is_draining()
            order = world.order()
            assert order is not None
            assert order.do is Do.NONE

        world = play(tmp_path, story)
        assert world.target.starts == 1
        assert world.orders() == ["flush", "stop", "none"]

    def test_failing_polls_withdraw_nothing(self, tmp_path: Path) -> None:
        """An outage after the notice changes nothing."""

        async def story(world: World) -> None:
            world.announce(seconds=None)
            await world.live(1)
            world.in_force.clear()
            for _ in range(30):
                await world.poll(is_failing=True)
                await world.runner.tick()
                await world.clock.sleep(1)
            assert world.is_draining()

        assert play(tmp_path, story).events("withdrawn") == []

    def test_a_flicker_withdraws_nothing(self, tmp_path: Path) -> None:
        """Two answers without the notice, then it is back."""

        async def story(world: World) -> None:
            notice = world.announce()
            for _ in range(10):
                world.in_force.clear()
                await world.live(2)
                world.in_force["i"] = notice
                await world.live(1)

        world = play(tmp_path, story)
        assert world.events("withdrawn") == []
        assert len(world.events("noticed")) == 1

    def test_absence_proves_nothing_for_pushed_notices(self, tmp_path: Path) -> None:
        """What came by webhook ends by cancel or by time, not by an empty inbox."""

        async def story(world: World) -> None:
            world.announce(seconds=7200, certainty=Certainty.TARGET, window_seconds=7200.0)
            await world.poll(absence_withdraws=False)
            world.in_force.clear()
            for _ in range(10):
                await world.poll(absence_withdraws=False)
                await world.clock.sleep(1)

        assert len(play(tmp_path, story).ledger.open_cases()) == 1

    def test_survived(self, tmp_path: Path) -> None:
        """A termination that never comes: ten minutes after the deadline training starts again, once."""

        async def story(world: World) -> None:
            world.target.on_signal = world.target.leave
            world.announce()
            await world.live(719, trainer=world.obedient_trainer, step=1)
            assert world.is_draining()
            await world.live(3, trainer=world.obedient_trainer)
            assert not world.is_draining()
            # AWS leaves the old time in the metadata: it must not stop the trainer again.
            await world.live(300, trainer=world.obedient_trainer, step=1)

        world = play(tmp_path, story)
        assert world.orders() == ["flush", "stop", "none"]
        assert world.target.starts == 1
        assert ("survived", "i") in world.listener.heard

    def test_a_new_notice_after_a_survived_one(self, tmp_path: Path) -> None:
        """The lingering notice gets a new time: that is a new reclaim."""

        async def story(world: World) -> None:
            world.announce()
            await world.live(725, trainer=world.obedient_trainer, step=1)
            world.announce()
            await world.live(119, trainer=world.obedient_trainer)

        assert play(tmp_path, story).orders() == ["flush", "stop", "none", "flush", "stop"]

    def test_two_cases_each_withdrawn_in_turn(self, tmp_path: Path) -> None:
        """The earliest governs; draining is lifted when the last that stopped is gone."""

        async def story(world: World) -> None:
            world.announce("a", seconds=100)
            world.announce("b", seconds=110)
            await world.live(95, trainer=world.obedient_trainer)
            assert world.is_draining()
            del world.in_force["a"]
            await world.live(6, trainer=world.obedient_trainer)
            assert world.is_draining()
            del world.in_force["b"]
            await world.live(6, trainer=world.obedient_trainer)
            assert not world.is_draining()

        world = play(tmp_path, story)
        assert world.orders() == ["flush", "stop", "none"]
        assert len(world.target.signals) == 1

    def test_the_governing_case_withdrawn_before_its_stop(self, tmp_path: Path) -> None:
        """The rest is planned anew: the later deadline now counts."""

        async def story(world: World) -> None:
            world.announce("a", seconds=60)
            world.announce("b", seconds=119)
            await world.live(5, trainer=world.obedient_trainer)
            del world.in_force["a"]
            await world.live(60, trainer=world.obedient_trainer)
            assert not world.is_draining()
            await world.live(50, trainer=world.obedient_trainer)

        world = play(tmp_path, story)
        assert world.orders() == ["flush", "stop"]
        assert len(world.target.signals) == 1

    def test_a_started_event_that_vanishes_has_passed(self, tmp_path: Path) -> None:
        """Azure: after Started nothing is withdrawn; the case is closed all the same."""

        async def story(world: World) -> None:
            world.announce(
                kind=Kind.MAINTENANCE, seconds=None, ends_machine=False, has_started=True, signal="events"
            )
            await world.live(3, trainer=world.obedient_trainer)
            world.in_force.clear()
            await world.live(5, trainer=world.obedient_trainer)

        world = play(tmp_path, story)
        assert len(world.events("passed")) == 1
        assert world.events("withdrawn") == []

    def test_left_over_from_yesterday(self, tmp_path: Path) -> None:
        """Present at the first poll and long past: counted, not acted on."""

        async def story(world: World) -> None:
            world.announce(seconds=-301)
            await world.live(5)

        world = play(tmp_path, story)
        assert len(world.events("notice_stale")) == 1
        assert world.orders() == []

    def test_what_appears_while_we_watch_is_live(self, tmp_path: Path) -> None:
        """Whatever time it names."""

        async def story(world: World) -> None:
            await world.live(3)
            world.announce(seconds=-301)
            await world.live(2)

        assert play(tmp_path, story).orders() == ["stop"]


class TestRelease:
    """Letting the machine go early."""

    @pytest.mark.parametrize(
        ("changes", "is_released"),
        [
            ({"sole_resource": True}, True),
            ({"sole_resource": False}, False),
            ({"sole_resource": True, "drill": True}, False),
            ({"sole_resource": True, "certainty": Certainty.ESTIMATE}, False),
        ],
    )
    def test_the_rule(self, tmp_path: Path, changes: dict[str, Any], is_released: bool) -> None:
        """Only a timed event of this machine alone, no drill, and only after a durable save."""

        async def story(world: World) -> None:
            world.release = Release(azure_approve=True)
            world.boot()
            world.announce(seconds=100, **changes)
            await world.live(50, trainer=world.report)
            assert world.confirmer.confirmed == []
            await world.live(45, trainer=world.obedient_trainer)

        assert play(tmp_path, story).confirmer.confirmed == (["i"] if is_released else [])

    def test_a_refused_approval_is_tried_again(self, tmp_path: Path) -> None:
        """And told once."""

        async def story(world: World) -> None:
            world.release = Release(azure_approve=True)
            world.boot()
            world.confirmer.error = Unavailable("POST: HTTP 500")
            world.announce(seconds=100, sole_resource=True)
            await world.live(92, trainer=world.obedient_trainer)
            world.confirmer.error = None
            await world.live(3, trainer=world.obedient_trainer)

        world = play(tmp_path, story)
        assert world.confirmer.confirmed == ["i"]
        failed = [e for e in world.events("acted") if e.data["result"] == "failed"]
        assert len(failed) == 1
