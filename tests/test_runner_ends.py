# SPDX-License-Identifier: Apache-2.0
"""Whole reclaims in virtual time: how a notice ends, and what is started again."""

from __future__ import annotations

from pathlib import Path

from spotwatch.model import Certainty, Do, Kind
from tests.world import World, play


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
