# SPDX-License-Identifier: Apache-2.0
"""Folders that the trainer's user has made where the daemon writes a file: an order goes out all the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotwatch import handshake
from spotwatch.checks.daemons import judge_orders
from spotwatch.errors import HandshakeError
from tests.world import World, play

_NAMES = (handshake.ORDER, handshake.DRAINING)


def _stand_in_the_way(world: World, name: str) -> None:
    place = world.folder / name
    place.unlink(missing_ok=True)
    place.mkdir()
    (place / "mine").touch()


def _refuse() -> None:
    raise HandshakeError("cannot remove draining: Operation not permitted")


@pytest.mark.parametrize("name", _NAMES)
def test_a_stop_is_told_whatever_stands_there(tmp_path: Path, name: str) -> None:
    """The folder is set aside with what is in it, and the file is written."""

    async def story(world: World) -> None:
        _stand_in_the_way(world, name)
        world.announce(seconds=None, certainty="estimate")
        await world.live(2, trainer=world.obedient_trainer)
        order = world.order()
        assert order is not None
        assert order.do == "stop"
        assert (world.folder / handshake.DRAINING).is_file()

    world = play(tmp_path, story)
    assert {event.data["result"] for event in world.events("acted")} == {"ok"}
    (aside,) = tmp_path.glob(f"{name}.refused-*")
    assert (aside / "mine").exists()


@pytest.mark.parametrize("name", _NAMES)
def test_a_stop_is_lifted_whatever_stands_there(tmp_path: Path, name: str) -> None:
    """The trainer is started only where its unit's condition holds: `draining` is gone."""

    async def story(world: World) -> None:
        world.target.on_signal = world.target.leave
        world.announce()
        await world.live(119, trainer=world.obedient_trainer)
        _stand_in_the_way(world, name)
        world.in_force.clear()
        await world.live(6)
        assert world.target.starts == 1
        assert not world.is_draining()

    assert play(tmp_path, story).orders() == ["flush", "stop", "none"]


def test_nobody_is_started_while_draining_stands(tmp_path: Path) -> None:
    """A start whose condition fails counts as done with systemd: it is kept until `draining` is gone."""

    async def story(world: World) -> None:
        world.target.on_signal = world.target.leave
        world.announce()
        await world.live(119, trainer=world.obedient_trainer)
        world.in_force.clear()
        # Immutable as far as the daemon is concerned: neither removed nor renamed.
        world.files.lift_draining = _refuse  # type: ignore[method-assign]
        await world.live(6)
        assert world.target.starts == 0
        del world.files.lift_draining
        await world.live(3)
        assert world.target.starts == 1

    play(tmp_path, story)


def test_a_folder_of_an_earlier_life_is_no_draining(tmp_path: Path) -> None:
    """It is taken away at the start, as the file of an earlier boot is."""

    async def story(world: World) -> None:
        _stand_in_the_way(world, handshake.DRAINING)
        world.boot()
        assert not world.is_draining()

    play(tmp_path, story)


def test_check_says_what_it_is(tmp_path: Path) -> None:
    """A folder is of no boot: that it is in the way, and how to mend it."""
    (tmp_path / handshake.DRAINING).mkdir()
    (finding,) = judge_orders(tmp_path, "b", is_running=True)
    assert (finding.name, "is no file" in finding.found) == ("draining", True)
    (tmp_path / handshake.DRAINING).rmdir()
    (tmp_path / handshake.DRAINING).write_text(json.dumps({"boot_id": "b"}), encoding="utf-8")
    (finding,) = judge_orders(tmp_path, "b", is_running=True)
    assert "a stop is in force" in finding.found
