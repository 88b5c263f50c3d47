# SPDX-License-Identifier: Apache-2.0
"""Whole reclaims in virtual time: what is ordered, and when."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from spotwatch.model import Certainty, Do, Evidence, Kind
from tests.world import World, play


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
