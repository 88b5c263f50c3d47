# SPDX-License-Identifier: Apache-2.0
"""Who is told of a stop, who is not told twice, who is started again, and what outlives a restart."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotwatch import handshake
from spotwatch.errors import ActionError
from spotwatch.handshake import Saved, Status
from spotwatch.model import Do, Kind
from spotwatch.policy import Policy
from spotwatch.targets import PartlyToldError, Proc
from spotwatch.testing import run_virtual
from tests.world import GONE, Killed, World, ourselves

Story = Callable[[World], Coroutine[Any, Any, None]]


def play(folder: Path, story: Story) -> World:
    """Run a story on a new machine, and return the machine."""

    async def main() -> World:
        world = World(folder, Policy(save_seconds=10))
        await story(world)
        return world

    return run_virtual(main())


def report(world: World, run_id: str, *, saved_seq: int = 0, phase: str = "training") -> None:
    """Write the status of one trainer of several."""
    now = world.clock.now()
    saved = Saved(seq=saved_seq, step=1, at=now) if saved_seq else Saved()
    status = Status(run_id=run_id, pid=1, at=now, phase=phase, seq=saved_seq, saved=saved)
    handshake.write_status(world.folder, status)


class TestEachOnce:
    """One signal for each process, as far as anybody can tell."""

    @pytest.mark.parametrize("dies", [False, True])
    def test_only_those_who_were_not_told(self, tmp_path: Path, dies: bool) -> None:
        """One of two could not be signalled: it alone is tried again, by the next life too."""
        first = ourselves()
        second = replace(first, pid=first.pid + 1)
        told: list[tuple[Proc, ...]] = []

        async def story(world: World) -> None:
            async def stop(procs: tuple[Proc, ...]) -> str:
                told.append(procs)
                if len(told) == 1:
                    raise PartlyToldError("not allowed to signal one", told=(first,))
                return "ok"

            world.target.find = lambda: (first, second)  # type: ignore[method-assign]
            world.target.stop = stop  # type: ignore[method-assign]
            world.announce(seconds=None)
            await world.live(0.3)
            if dies:
                world.boot()
            await world.live(4)

        world = play(tmp_path, story)
        assert told == [(first, second), (second,)]
        assert world.orders() == ["stop"]

    def test_whoever_has_come_in_its_place(self, tmp_path: Path) -> None:
        """The process that was to be signalled is gone, another one runs: that one has not been told."""

        async def story(world: World) -> None:
            async def deadly(procs: tuple[Proc, ...]) -> str:
                raise Killed

            real = world.target.stop
            world.target.proc = GONE
            world.target.stop = deadly  # type: ignore[method-assign]
            world.announce(seconds=None)
            with pytest.raises(Killed):
                await world.live(3)
            world.target.stop = real  # type: ignore[method-assign]
            world.target.proc = ourselves()
            world.boot()
            await world.live(3)

        assert len(play(tmp_path, story).target.signals) == 1

    def test_a_late_target_after_another_one_has_answered(self, tmp_path: Path) -> None:
        """A stop that is answered as durable still goes to the target that was away."""

        async def story(world: World) -> None:
            world.target.is_there = False
            world.announce(seconds=None)
            await world.live(3, trainer=world.obedient_trainer)
            assert world.events("answered")
            world.target.is_there = True
            await world.live(3)

        assert len(play(tmp_path, story).target.signals) == 1

    def test_a_late_target_that_leaves_has_answered(self, tmp_path: Path) -> None:
        """It was not there when the order was given; that it is gone now acknowledges all the same."""

        async def story(world: World) -> None:
            world.target.is_there = False
            world.announce(seconds=None)
            await world.live(3)
            assert world.events("answered") == []
            world.target.is_there = True
            world.target.proc = GONE
            await world.live(3)

        assert [e.data["answer"] for e in play(tmp_path, story).events("answered")] == ["acknowledged"]

    def test_no_target_and_a_script(self, tmp_path: Path) -> None:
        """Where nobody can be signalled, the removed flag acknowledges the stop."""

        async def story(world: World) -> None:
            world.has_target = False
            world.boot()
            world.announce(seconds=None)
            await world.live(2)
            world.remove_flag()
            await world.live(1)

        assert [e.data["answer"] for e in play(tmp_path, story).events("answered")] == ["acknowledged"]


class TestStartAgain:
    """No paid GPU stands idle after a withdrawal."""

    @pytest.mark.parametrize("dies", [False, True])
    def test_until_it_works(self, tmp_path: Path, dies: bool) -> None:
        """A start that fails is tried again, by the next life too, and told once; one that worked is not."""
        tries: list[float] = []

        async def story(world: World) -> None:
            async def start() -> str:
                tries.append(world.clock.monotonic())
                if len(tries) < 3:
                    raise ActionError("systemctl start: no answer within 2 s")
                return "started"

            world.target.on_signal = world.target.leave
            world.target.start = start  # type: ignore[method-assign]
            world.announce(seconds=None)
            await world.live(3)
            world.in_force.clear()
            await world.live(6)
            if dies:
                world.boot()
            await world.live(120, step=1)

        world = play(tmp_path, story)
        assert len(tries) == 3
        assert world.orders() == ["stop", "none"]
        failed = [e for e in world.events("acted") if e.data["result"] == "failed"]
        assert len(failed) == (2 if dies else 1)

    def test_one_that_left_before_its_signal(self, tmp_path: Path) -> None:
        """It read the order and went by itself: the withdrawal starts it again."""

        async def story(world: World) -> None:
            world.report()
            world.announce(seconds=None)
            await world.poll()
            find = world.target.find
            calls: list[int] = []

            def once() -> tuple[Proc, ...]:
                calls.append(1)
                if len(calls) > 1:
                    raise ActionError("gone")
                return find()

            world.target.find = once  # type: ignore[method-assign]
            await world.live(4)
            world.target.leave()
            world.in_force.clear()
            await world.live(6)

        world = play(tmp_path, story)
        assert (world.target.signals, world.target.starts) == ([], 1)

    def test_one_that_still_saves(self, tmp_path: Path) -> None:
        """Withdrawn while it saves before it leaves: it is started once it has left, not before."""

        async def story(world: World) -> None:
            world.announce(seconds=None)
            await world.live(3)
            world.in_force.clear()
            await world.live(30)
            assert world.orders() == ["stop", "none"]
            assert world.target.starts == 0
            world.target.leave()
            await world.live(2)

        assert play(tmp_path, story).target.starts == 1

    def test_a_flush_that_comes_meanwhile(self, tmp_path: Path) -> None:
        """The next order does not make us forget whom the lifted stop has to be started for."""

        async def story(world: World) -> None:
            world.announce(seconds=None)
            await world.live(3)
            world.in_force.clear()
            await world.live(6)
            world.announce("r", kind=Kind.AT_RISK, seconds=None, ends_machine=False, signal="risk")
            await world.live(3)
            assert world.orders() == ["stop", "none", "flush"]
            world.target.leave()
            await world.live(2)

        assert play(tmp_path, story).target.starts == 1

    def test_one_that_does_not_mean_to_leave(self, tmp_path: Path) -> None:
        """Ten minutes after the withdrawal it trains on: that it ends one day is its own affair."""

        async def story(world: World) -> None:
            world.announce(seconds=None)
            await world.live(3)
            world.in_force.clear()
            await world.live(610, step=1)
            world.target.leave()
            await world.live(60, step=1)

        assert play(tmp_path, story).target.starts == 0

    def test_one_that_never_ran(self, tmp_path: Path) -> None:
        """What was not there to be stopped is not started."""

        async def story(world: World) -> None:
            world.target.is_there = False
            world.announce(seconds=None)
            await world.live(3)
            world.in_force.clear()
            await world.live(6)

        assert play(tmp_path, story).target.starts == 0


class TestAfterARestart:
    """What the service manager emptied, and what was left half done."""

    def test_an_emptied_directory_during_a_stop(self, tmp_path: Path) -> None:
        """Order and draining are there again, under the same number; nobody is signalled again."""

        async def story(world: World) -> None:
            world.announce(seconds=None)
            await world.live(3)
            for name in (handshake.ORDER, handshake.DRAINING):
                (tmp_path / name).unlink()
            world.boot()
            await world.runner.give_overdue_stop()
            assert world.is_draining()

        world = play(tmp_path, story)
        order = world.order()
        assert order is not None
        assert (order.seq, order.do) == (1, Do.STOP)
        assert len(world.target.signals) == 1

    def test_an_emptied_directory_during_a_flush(self, tmp_path: Path) -> None:
        """The flag is raised again: its absence is no answer."""

        async def story(world: World) -> None:
            world.announce()
            await world.live(3)
            for name in (handshake.ORDER, handshake.FLAG):
                (tmp_path / name).unlink()
            world.boot()
            await world.runner.give_overdue_stop()
            await world.live(1)
            assert world.flag().exists()
            assert world.events("answered") == []

        assert play(tmp_path, story).orders() == ["flush"]

    def test_an_unfinished_stop_goes_on_before_the_first_poll(self, tmp_path: Path) -> None:
        """Recorded, but not told when the daemon died: it is told without any tick."""

        async def story(world: World) -> None:
            world.announce(seconds=None)

            async def deadly(*_: object) -> str:
                raise Killed

            world.files.fire = deadly  # type: ignore[assignment,method-assign]
            with pytest.raises(Killed):
                await world.live(2)
            world.boot()
            await world.runner.give_overdue_stop()

        world = play(tmp_path, story)
        assert world.is_draining()
        assert len(world.target.signals) == 1

    def test_the_stop_of_our_own_end_signals_nobody(self, tmp_path: Path) -> None:
        """A container restarted in its pod: the old stop is lifted, the new trainer is not told of it."""

        async def story(world: World) -> None:
            world.target.is_there = False
            await world.runner.stop_now("the pod is being stopped")
            world.target.is_there = True
            world.boot()
            await world.runner.give_overdue_stop()
            await world.live(3)

        world = play(tmp_path, story)
        assert world.orders() == ["stop", "none"]
        assert world.target.signals == []

    def test_a_stop_whose_row_was_lost(self, tmp_path: Path) -> None:
        """The disk hung and the daemon died: the same stop keeps its number, and `seen` spares the signal."""

        async def story(world: World) -> None:
            world.announce(seconds=None)
            await world.live(2)
            world.kept.clear()
            world.boot()
            world.report(phase="uploading", seq=1)
            await world.live(3)

        world = play(tmp_path, story)
        order = world.order()
        assert order is not None
        assert (order.seq, order.do) == (1, Do.STOP)
        assert len(world.target.signals) == 1

    def test_draining_that_nothing_explains(self, tmp_path: Path) -> None:
        """Alone, without an order: lifted after a while of watching."""
        (tmp_path / handshake.DRAINING).write_text('{"boot_id": "boot-1"}')

        async def story(world: World) -> None:
            await world.live(10)
            assert world.is_draining()
            await world.live(10)

        assert not play(tmp_path, story).is_draining()


class TestSeveralTrainers:
    """One order, many who must answer."""

    def test_all_fresh_ones(self, tmp_path: Path) -> None:
        """A flush is answered by the last of them."""

        async def story(world: World) -> None:
            report(world, "a")
            world.announce()
            await world.live(1)
            for _ in range(4):
                report(world, "a", saved_seq=1)
                report(world, "b")
                await world.live(1)
            assert world.events("answered") == []
            report(world, "b", saved_seq=1)
            await world.live(1)

        assert [e.data["answer"] for e in play(tmp_path, story).events("answered")] == ["durable"]

    @pytest.mark.parametrize(("kind", "is_answered"), [(Kind.AT_RISK, True), (Kind.RECLAIM, False)])
    def test_one_is_lost(self, tmp_path: Path, kind: Kind, is_answered: bool) -> None:
        """Whoever is left answers a flush; a stop in which one was lost is never called durable."""

        async def story(world: World) -> None:
            report(world, "a")
            report(world, "b")
            world.announce(seconds=None, kind=kind)
            await world.live(2)
            for _ in range(20):
                report(world, "a", saved_seq=1)
                await world.live(1)

        assert bool(play(tmp_path, story).events("answered")) is is_answered

    def test_one_has_finished(self, tmp_path: Path) -> None:
        """A run that ended by itself holds nobody up, whatever its name."""

        async def story(world: World) -> None:
            report(world, "a")
            report(world, "b")
            world.announce(seconds=None)
            await world.live(2)
            now = world.clock.now()
            done = Status(run_id="b", pid=1, at=now, phase="finished", saved=Saved(step=9, at=now))
            handshake.write_status(world.folder, done)
            report(world, "a", saved_seq=1)
            await world.live(1)

        assert [e.data["answer"] for e in play(tmp_path, story).events("answered")] == ["durable"]
