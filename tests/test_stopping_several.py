# SPDX-License-Identifier: Apache-2.0
"""What outlives a restart of the daemon, and how several trainers share one stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwatch import handshake
from spotwatch.handshake import Saved, Status
from spotwatch.model import Do, Kind
from spotwatch.policy import Policy
from tests.world import Killed, World, play

POLICY = Policy(save_seconds=10)


def report(world: World, run_id: str, *, saved_seq: int = 0, phase: str = "training") -> None:
    """Write the status of one trainer of several."""
    now = world.clock.now()
    saved = Saved(seq=saved_seq, step=1, at=now) if saved_seq else Saved()
    status = Status(run_id=run_id, pid=1, at=now, phase=phase, seq=saved_seq, saved=saved)
    handshake.write_status(world.folder, status)


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

        world = play(tmp_path, story, POLICY)
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

        assert play(tmp_path, story, POLICY).orders() == ["flush"]

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

        world = play(tmp_path, story, POLICY)
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

        world = play(tmp_path, story, POLICY)
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

        world = play(tmp_path, story, POLICY)
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

        assert not play(tmp_path, story, POLICY).is_draining()


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

        assert [e.data["answer"] for e in play(tmp_path, story, POLICY).events("answered")] == ["durable"]

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

        assert bool(play(tmp_path, story, POLICY).events("answered")) is is_answered

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

        assert [e.data["answer"] for e in play(tmp_path, story, POLICY).events("answered")] == ["durable"]
