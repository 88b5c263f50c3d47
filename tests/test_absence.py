# SPDX-License-Identifier: Apache-2.0
"""Notices on a machine where nobody trains: answered where that is known, a failure where it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from spotwatch import handshake
from spotwatch.handshake import Saved, Status
from spotwatch.model import Do, Kind
from spotwatch.testing import FakeClock
from tests.world import FakeTarget, World, play

LONG_AGO = 60.0


class Remembered(FakeTarget):
    """A process that was found once, so that its pattern is right."""

    was_found = True


class Hidden(FakeTarget):
    """A process that cannot be seen from here."""

    def obstacle(self) -> str:
        """Say why."""
        return "/proc is hidden"


class Unit(FakeTarget):
    """A service, about whose end systemd is sure."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.label = "unit train.service"
        self.state = "inactive"

    def is_down(self) -> bool:
        """Tell whether it is at rest."""
        return not self.is_there and self.state == "inactive"

    def is_restarting(self) -> bool:
        """Tell whether it is between two starts."""
        return not self.is_there and self.state == "restarting"


def word(clock: FakeClock, phase: str, code: int | None, *, age: float = 0.0, run_id: str = "run") -> Status:
    """Return what a trainer said so long ago, its last step saved unless it has failed."""
    at = clock.now() - timedelta(seconds=age)
    saved = Saved(step=5 if phase in ("failed", "training") else 10, at=at, save_seconds=2.0)
    return Status(run_id=run_id, pid=7, at=at, phase=phase, step=10, saved=saved, exit_code=code)


def say(world: World, phase: str, code: int | None, *, age: float = LONG_AGO, run_id: str = "run") -> None:
    """Leave that word in `status/`."""
    handshake.write_status(world.folder, word(world.clock, phase, code, age=age, run_id=run_id))


def away(world: World, target: Callable[[World], FakeTarget] | None = FakeTarget) -> None:
    """Let there be a target of this kind, which does not run; None: none is configured."""
    if target is None:
        world.has_target = False
    else:
        world.target = target(world)
        world.target.is_there = False
    world.boot()


def outcome(world: World) -> tuple[list[str], int, int]:
    """Return how orders were answered, how many actions failed, and how many cases were missed."""
    failed = [event for event in world.events("acted") if event.data["result"] == "failed"]
    return [e.data["answer"] for e in world.events("answered")], len(failed), len(world.events("missed"))


@pytest.mark.parametrize("target", [FakeTarget, Remembered, Unit, None])
@pytest.mark.parametrize(
    ("phase", "code", "answer"),
    [
        ("finished", 0, "durable"),
        ("finished", None, "durable"),
        ("durable", 75, "durable"),
        ("failed", 76, "acknowledged"),
        ("failed", 77, "acknowledged"),
        ("failed", 1, "acknowledged"),
    ],
)
def test_after_a_run_that_has_ended(
    tmp_path: Path, target: type[FakeTarget] | None, phase: str, code: int | None, answer: str
) -> None:
    """Flush and stop are answered as its last word allows; nothing fails, is missed or reported saved."""

    async def story(world: World) -> None:
        away(world, target)
        say(world, phase, code)
        world.announce()
        await world.live(3)
        assert len(world.events("answered")) == 1
        await world.live(127)
        assert world.is_draining()

    world = play(tmp_path, story)
    assert outcome(world) == ([answer, answer], 0, 0)
    assert world.target.signals == []
    told = [("notice", "i")] + ([("saved", "i")] if answer == "durable" else [])
    assert world.listener.heard == told
    assert [event for event in world.events("saved") if not event.data["is_durable"]] == []


@pytest.mark.parametrize(
    ("target", "is_answered"), [(FakeTarget, True), (Unit, True), (Hidden, False), (None, False)]
)
def test_after_one_that_was_killed(
    tmp_path: Path, target: type[FakeTarget] | None, is_answered: bool
) -> None:
    """Where it is looked for and not found it is gone; where it cannot be looked for it may only hang."""

    async def story(world: World) -> None:
        away(world, target)
        say(world, "training", None)
        world.announce()
        await world.live(130)

    answers, failed, missed = outcome(play(tmp_path, story))
    assert answers == (["acknowledged"] * 2 if is_answered else [])
    assert missed == (0 if is_answered else 1)
    assert bool(failed) is (target is Hidden)


@pytest.mark.parametrize(
    ("target", "is_answered"),
    [(FakeTarget, False), (Hidden, False), (None, False), (Remembered, True), (Unit, True)],
)
def test_where_nobody_ever_spoke(tmp_path: Path, target: type[FakeTarget] | None, is_answered: bool) -> None:
    """A pattern that has found nothing may be wrong, and that is told; systemd is believed."""

    async def story(world: World) -> None:
        away(world, target)
        world.announce()
        await world.live(130)

    answers, failed, missed = outcome(play(tmp_path, story))
    assert answers == (["acknowledged"] * 2 if is_answered else [])
    assert missed == (0 if is_answered else 1)
    assert bool(failed) is (target in (FakeTarget, Hidden))


def test_an_old_loss_is_not_this_ones(tmp_path: Path) -> None:
    """One that was killed, then a run that finished: nothing is missed; nor is everything promised."""

    async def story(world: World) -> None:
        away(world, None)
        say(world, "training", None, age=3600, run_id="a")
        say(world, "finished", 0, run_id="b")
        world.announce()
        await world.live(130)

    assert outcome(play(tmp_path, story)) == (["acknowledged"] * 2, 0, 0)


@pytest.mark.parametrize("target", [FakeTarget, Unit])
def test_one_that_starts_before_the_deadline(tmp_path: Path, target: type[FakeTarget]) -> None:
    """Nobody was there at the notice; who starts then is told to stop, and its own save is the answer."""

    async def story(world: World) -> None:
        away(world, target)
        say(world, "finished", 0)
        world.announce()
        await world.live(30)
        world.target.is_there = True
        await world.live(20, trainer=world.report)
        assert world.target.signals == []
        await world.live(80, trainer=world.obedient_trainer)

    world = play(tmp_path, story)
    assert outcome(world) == (["durable", "durable"], 0, 0)
    assert len(world.target.signals) == 1


@pytest.mark.parametrize("target", [FakeTarget, Unit])
def test_one_that_starts_after_the_stop(tmp_path: Path, target: type[FakeTarget]) -> None:
    """The stop was answered, since nobody was there: whoever starts all the same is told within seconds."""

    async def story(world: World) -> None:
        away(world, target)
        say(world, "finished", 0)
        world.announce(seconds=None)
        await world.live(20)
        assert len(world.events("answered")) == 1
        world.target.is_there = True
        await world.live(3)

    world = play(tmp_path, story)
    assert len(world.target.signals) == 1
    assert outcome(world)[1:] == (0, 0)


@pytest.mark.parametrize(("age", "is_missed"), [(5, False), (-2, True)])
def test_one_that_heard_the_order_and_was_lost(tmp_path: Path, age: float, is_missed: bool) -> None:
    """Who failed before the notice has missed nothing by it; who failed after it, asked to save, has."""

    async def story(world: World) -> None:
        away(world, FakeTarget)
        if not is_missed:
            say(world, "failed", 76, age=age)
        else:
            world.target.is_there = True
            world.report()
        world.announce()
        await world.live(2)
        if is_missed:
            world.target.is_there = False
            say(world, "failed", 76, age=0)
        await world.live(128)

    world = play(tmp_path, story)
    answers, _, missed = outcome(world)
    assert bool(missed) is is_missed
    assert answers == ([] if is_missed else ["acknowledged"] * 2)


def test_a_unit_between_two_starts(tmp_path: Path) -> None:
    """A stop does not fail for it; `draining` holds it back then, and once that is lifted it is started."""

    async def story(world: World) -> None:
        away(world, Unit)
        assert isinstance(world.target, Unit)
        world.target.state = "restarting"
        say(world, "failed", 76, age=3)
        world.announce(seconds=None)
        await world.live(5)
        assert outcome(world) == ([], 0, 0)
        world.target.state = "inactive"
        await world.live(5)
        assert outcome(world) == (["acknowledged"], 0, 0)
        assert world.target.starts == 0
        world.in_force.clear()
        await world.live(8)

    world = play(tmp_path, story)
    assert world.target.starts == 1
    assert world.orders() == ["stop", "none"]


def test_a_unit_that_comes_back_in_time(tmp_path: Path) -> None:
    """It was between two starts when the stop was ordered: it is told once it runs."""

    async def story(world: World) -> None:
        away(world, Unit)
        assert isinstance(world.target, Unit)
        world.target.state = "restarting"
        world.announce(seconds=None)
        await world.live(5)
        world.target.is_there = True
        await world.live(5)

    world = play(tmp_path, story)
    assert len(world.target.signals) == 1
    assert outcome(world)[1] == 0


def test_one_of_two_has_ended(tmp_path: Path) -> None:
    """The other is told and saves: its save is the answer, and that one is away is no failure."""

    async def story(world: World) -> None:
        done = Unit(world)
        done.is_there = False
        world.parts.targets = [done, world.target]
        world.announce()
        await world.live(130, trainer=world.obedient_trainer)
        assert done.signals == []

    world = play(tmp_path, story)
    assert outcome(world) == (["durable", "durable"], 0, 0)
    assert len(world.target.signals) == 1


def test_a_trainer_that_the_target_does_not_find(tmp_path: Path) -> None:
    """It reports, and nobody is found to be told: that is a failure, whatever systemd says of the unit."""

    async def story(world: World) -> None:
        away(world, Unit)
        world.announce(seconds=None)
        await world.live(5, trainer=world.report)

    answers, failed, _ = outcome(play(tmp_path, story))
    assert (answers, bool(failed)) == ([], True)


@pytest.mark.parametrize("has_spoken", [True, False])
def test_over_a_restart(tmp_path: Path, has_spoken: bool) -> None:
    """A daemon that dies between order and answer goes by last words; without any it does not know."""

    async def story(world: World) -> None:
        away(world, Unit)
        if has_spoken:
            say(world, "finished", 0)
        world.announce()
        await world.poll()
        await world.runner.tick()
        assert world.events("answered") == []
        world.boot()
        await world.live(20)

    assert outcome(play(tmp_path, story))[0] == (["durable"] if has_spoken else [])


def test_a_flush_that_waits_for_one_who_is_here(tmp_path: Path) -> None:
    """A script was there when it was told, and is gone: that it left is no answer to a flush."""

    async def story(world: World) -> None:
        world.target = Remembered(world)
        world.boot()
        world.announce(kind=Kind.AT_RISK, seconds=None, ends_machine=False, signal="risk")
        await world.live(3)
        world.target.is_there = False
        await world.live(60)
        order = world.ledger.last_order()
        assert order is not None
        assert (order.do, order.answer) == (Do.FLUSH, "")

    play(tmp_path, story)


def test_a_clock_that_was_set_back(tmp_path: Path) -> None:
    """A last word from the future is one all the same."""

    async def story(world: World) -> None:
        away(world, FakeTarget)
        handshake.write_status(tmp_path, replace(word(world.clock, "finished", 0, age=-3600)))
        world.announce()
        await world.live(130)

    assert outcome(play(tmp_path, story))[1:] == (0, 0)
