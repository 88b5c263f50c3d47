# SPDX-License-Identifier: Apache-2.0
"""Who is told of a stop, who is not told twice, and who is started again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from spotwatch.errors import ActionError
from spotwatch.model import Kind
from spotwatch.policy import Policy
from spotwatch.stopping import are_known_gone
from spotwatch.targets import PartlyToldError, Proc, Target
from tests.world import GONE, Killed, World, ourselves, play

POLICY = Policy(save_seconds=10)


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

        world = play(tmp_path, story, POLICY)
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

        assert len(play(tmp_path, story, POLICY).target.signals) == 1

    def test_a_late_target_after_another_one_has_answered(self, tmp_path: Path) -> None:
        """A stop that is answered as durable still goes to the target that was away."""

        async def story(world: World) -> None:
            world.target.is_there = False
            world.announce(seconds=None)
            await world.live(3, trainer=world.obedient_trainer)
            assert world.events("answered")
            world.target.is_there = True
            await world.live(3)

        assert len(play(tmp_path, story, POLICY).target.signals) == 1

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

        assert [e.data["answer"] for e in play(tmp_path, story, POLICY).events("answered")] == [
            "acknowledged"
        ]

    def test_who_cannot_be_signalled_has_not_stopped_by_a_save(self, tmp_path: Path) -> None:
        """It is seen and may not be told; saved for the flag, it trains on: no answer before it has gone."""

        async def story(world: World) -> None:
            def refuse() -> tuple[Proc, ...]:
                raise ActionError("not allowed to signal it")

            def heads() -> tuple[Proc, ...]:
                return (world.target.proc,)

            world.target.find = refuse  # type: ignore[method-assign]
            world.target.heads = heads  # type: ignore[attr-defined]
            world.target.is_away = lambda: False  # type: ignore[attr-defined]
            world.announce(seconds=None)
            await world.live(2)
            world.remove_flag()
            await world.live(3)
            assert world.events("answered") == []
            world.target.leave()
            await world.live(1)

        assert [e.data["answer"] for e in play(tmp_path, story, POLICY).events("answered")] == [
            "acknowledged"
        ]

    def test_no_target_and_a_script(self, tmp_path: Path) -> None:
        """Where nobody can be signalled, the removed flag acknowledges the stop."""

        async def story(world: World) -> None:
            world.has_target = False
            world.boot()
            world.announce(seconds=None)
            await world.live(2)
            world.remove_flag()
            await world.live(1)

        assert [e.data["answer"] for e in play(tmp_path, story, POLICY).events("answered")] == [
            "acknowledged"
        ]


class _Target:
    """One that is found or not, seen or not, and may be in the way of a stop."""

    label = "process 'train.py'"

    def __init__(self, *, is_found: bool, is_seen: bool = False, obstacle: str = "") -> None:
        self._is_found = is_found
        self._is_seen = is_seen
        self._obstacle = obstacle

    def find(self) -> tuple[Proc, ...]:
        """Return it, if it may be signalled."""
        if not self._is_found:
            raise ActionError("none")
        return (ourselves(),)

    def heads(self) -> tuple[Proc, ...]:
        """Return it, if it is seen."""
        if not self._is_seen:
            raise ActionError("none")
        return (ourselves(),)

    def is_away(self) -> bool:
        """Return False: it is nobody's child."""
        return False

    def obstacle(self) -> str:
        """Return what is in the way."""
        return self._obstacle


@pytest.mark.parametrize(
    ("target", "is_gone"),
    [
        (_Target(is_found=False), True),
        (_Target(is_found=True), False),
        (_Target(is_found=False, is_seen=True), False),
        (_Target(is_found=False, obstacle="the processes of other users are hidden from us"), False),
    ],
)
async def test_who_is_known_to_be_gone(target: _Target, is_gone: bool) -> None:
    """Not whom we may not signal, nor whom we could not see."""
    assert await are_known_gone([cast("Target", target)]) is is_gone


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

        world = play(tmp_path, story, POLICY)
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

        world = play(tmp_path, story, POLICY)
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

        assert play(tmp_path, story, POLICY).target.starts == 1

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

        assert play(tmp_path, story, POLICY).target.starts == 1

    def test_one_that_does_not_mean_to_leave(self, tmp_path: Path) -> None:
        """Ten minutes after the withdrawal it trains on: that it ends one day is its own affair."""

        async def story(world: World) -> None:
            world.announce(seconds=None)
            await world.live(3)
            world.in_force.clear()
            await world.live(610, step=1)
            world.target.leave()
            await world.live(60, step=1)

        assert play(tmp_path, story, POLICY).target.starts == 0

    def test_one_that_never_ran(self, tmp_path: Path) -> None:
        """What was not there to be stopped is not started."""

        async def story(world: World) -> None:
            world.target.is_there = False
            world.announce(seconds=None)
            await world.live(3)
            world.in_force.clear()
            await world.live(6)

        assert play(tmp_path, story, POLICY).target.starts == 0
