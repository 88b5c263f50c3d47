# SPDX-License-Identifier: Apache-2.0
"""Files of a trainer that nobody foresaw, and what they must never do: keep a stop from going out.

Which of them are refused, and how, is tested with the handshake.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotwatch import handshake
from spotwatch.model import Do
from spotwatch.targets import Proc
from tests.world import FakeTarget, World, play

_BEYOND = ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59")


class _Puzzling(FakeTarget):
    """A target that nobody can be told of."""

    def is_alive(self, proc: Proc) -> bool:
        """Fail as no code foresees."""
        raise ZeroDivisionError(proc.pid)


def _write_status(world: World, **values: object) -> None:
    row = {"version": 1, "pid": 1, "run_id": "x", "at": "2026-11-29T12:00:00Z", "phase": "training"}
    (world.folder / handshake.STATUS_DIR / "x.json").write_text(json.dumps(row | values), encoding="utf-8")


def _write_order(world: World, **values: object) -> None:
    row = {"version": 1, "boot_id": world.clock.boot_id, "seq": 3, "id": "a", "do": "flush"}
    (world.folder / handshake.ORDER).write_text(json.dumps(row | values), encoding="utf-8")


@pytest.mark.parametrize("moment", _BEYOND)
@pytest.mark.parametrize("life", ["this", "next"])
def test_a_time_beyond_the_calendar_keeps_no_stop_back(tmp_path: Path, moment: str, life: str) -> None:
    """In a status, and in an order: the stop goes out at its time, and one line names the file."""

    async def story(world: World) -> None:
        _write_status(world, at=moment)
        _write_order(world, deadline=moment)
        world.announce(seconds=120)
        if life == "next":
            await world.poll()
            world.boot()
            await world.runner.give_overdue_stop()
        await world.live(119)

    world = play(tmp_path, story)
    assert world.orders() == ["flush", "stop"]
    assert world.events("unexpected") == []
    (refused,) = world.events("status_refused")[-1:]
    assert refused.data["files"][0].startswith("x.json: ")


def test_an_answer_that_cannot_be_read_keeps_no_stop_back(tmp_path: Path) -> None:
    """What fails while answers are collected is told once, and the steps that are due are carried out."""

    async def story(world: World) -> None:
        world.target = _Puzzling(world)
        world.boot()
        world.announce("first", seconds=None, certainty="estimate")
        await world.live(5)
        world.announce("second", seconds=None, certainty="estimate")
        await world.live(5)

    world = play(tmp_path, story)
    assert "stop" in world.orders()
    assert [e.data["error"].split(":")[1].strip() for e in world.events("unexpected")] == [
        "ZeroDivisionError"
    ]


@pytest.mark.parametrize("seq", [2**53, 2**53 + 1, 1_764_484_000_000_000_000, 10**400])
@pytest.mark.parametrize("where", ["status", "saved", "order"])
def test_a_number_that_no_order_has_raises_no_other(tmp_path: Path, where: str, seq: int) -> None:
    """A time in nanoseconds where an order's number belongs: later orders keep theirs, and are answered."""

    async def story(world: World) -> None:
        if where == "order":
            _write_order(world, seq=seq)
        else:
            values = {"seq": seq} if where == "status" else {"saved": {"seq": seq}}
            _write_status(world, at=world.clock.now().isoformat(), **values)
        world.announce(seconds=120)
        await world.live(119, trainer=world.obedient_trainer)

    world = play(tmp_path, story)
    assert [event.data["seq"] for event in world.events("ordered")] == [1, 2]
    assert [(event.data["do"], event.data["answer"]) for event in world.events("answered")] == [
        (Do.FLUSH, "durable"),
        (Do.STOP, "durable"),
    ]


@pytest.mark.parametrize("where", ["status", "order"])
def test_the_highest_number_that_is_believed_leaves_room(tmp_path: Path, where: str) -> None:
    """Orders after it have numbers that every reader keeps, and are answered."""

    async def story(world: World) -> None:
        write = _write_order if where == "order" else _write_status
        write(world, seq=handshake.MAX_HEARD_SEQ)
        world.announce(seconds=120)
        await world.live(119, trainer=world.obedient_trainer)

    world = play(tmp_path, story)
    first = handshake.MAX_HEARD_SEQ + 1
    assert [event.data["seq"] for event in world.events("ordered")] == [first, first + 1]
    assert [event.data["answer"] for event in world.events("answered")] == ["durable"] * 2


def test_a_stop_with_a_number_beyond_belief_is_not_taken_over(tmp_path: Path) -> None:
    """`order.json` names our very case, so that its number would be kept: not this one."""

    async def story(world: World) -> None:
        _write_order(world, do="stop", id="i", seq=handshake.MAX_SEQ)
        world.announce("i", seconds=None, certainty="estimate")
        await world.live(3, trainer=world.obedient_trainer)

    assert [event.data["seq"] for event in play(tmp_path, story).events("ordered")] == [1]
