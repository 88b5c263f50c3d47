# SPDX-License-Identifier: Apache-2.0
"""Deadlines that no cloud can mean: what is planned with them, and that nothing else suffers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spotwatch.model import Certainty, Kind
from tests.world import World, play

ZERO = datetime(1, 1, 1, tzinfo=UTC)
"""What Go writes for a time that was never set."""
_ABSURD = {
    "zero": ZERO,
    "1970": datetime(1970, 1, 1, tzinfo=UTC),
    "the last": datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
}


@pytest.mark.parametrize("name", _ABSURD)
@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("window", [None, 120.0, 7200.0])
def test_the_other_notice_is_planned_all_the_same(
    tmp_path: Path, name: str, kind: Kind, window: float | None
) -> None:
    """Beside an absurd time, and after a restart with it, a real reclaim has its stop in time."""

    async def story(world: World) -> None:
        absurd = world.announce("absurd", None, kind, window_seconds=window, ends_machine=True)
        world.in_force["absurd"] = type(absurd).from_json(
            json.loads(json.dumps(absurd.to_json() | {"deadline": _ABSURD[name].isoformat()}))
        )
        await world.live(2, trainer=world.obedient_trainer)
        world.boot()
        await world.runner.give_overdue_stop()
        world.announce("real", 120)
        await world.live(119, trainer=world.obedient_trainer)

    world = play(tmp_path, story)
    assert world.orders()[-1] == "stop"
    assert len(world.target.signals) == 1
    assert not world.events("unexpected")


@pytest.mark.parametrize("name", ["zero", "1970"])
@pytest.mark.parametrize("certainty", Certainty)
def test_a_reclaim_that_is_long_past_stops_at_once(tmp_path: Path, name: str, certainty: Certainty) -> None:
    """The cloud says that the machine goes: a time that cannot be is no reason to wait."""

    async def story(world: World) -> None:
        await world.live(2, trainer=world.obedient_trainer)
        world.in_force["i"] = world.announce(seconds=None, certainty=certainty)
        world.in_force["i"] = type(world.in_force["i"]).from_json(
            world.in_force["i"].to_json() | {"deadline": _ABSURD[name].isoformat()}
        )
        await world.live(3, trainer=world.obedient_trainer)

    assert play(tmp_path, story).orders() == ["stop"]


def test_a_tick_that_fails_is_counted_against_us(tmp_path: Path) -> None:
    """While nothing can be carried out `failing_seconds` grows; the first success ends it."""

    async def story(world: World) -> None:
        is_broken = True

        async def tick() -> None:
            if is_broken:
                raise OverflowError("date value out of range")

        assert world.runner.failing_seconds() == 0
        await world.runner.attempt(tick)
        await world.clock.sleep(30)
        await world.runner.attempt(tick)
        assert world.runner.failing_seconds() == 30
        assert [event.data["error"] for event in world.events("unexpected")] == [
            "OverflowError: date value out of range"
        ]
        is_broken = False
        await world.runner.attempt(tick)
        assert world.runner.failing_seconds() == 0

    play(tmp_path, story)
