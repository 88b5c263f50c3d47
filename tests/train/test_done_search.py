# SPDX-License-Identifier: Apache-2.0
"""Random histories of workers, kills, freezes and store faults: no output is lost, doubled or changed."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from spotwatch.train.done import keeper, shares
from spotwatch.train.lease import slot, take

from .done_world import Odds, World

_HISTORIES = 60


class _NoThread(threading.Thread):
    """A thread that the system does not give."""

    def start(self) -> None:
        """Refuse, in the words of Python."""
        raise RuntimeError("can't start new thread")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no thread store beside the worker's own: the system has none to give."""
    monkeypatch.setattr(keeper, "threading", SimpleNamespace(Thread=_NoThread, Condition=threading.Condition))


@pytest.fixture(autouse=True)
def _again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each run draw alike, so that what fails once fails again."""
    chance = random.Random(0)
    for module in (shares, slot, take):
        monkeypatch.setattr(module, "random", SimpleNamespace(SystemRandom=lambda: chance))


def _play(seed: int, odds: Odds) -> World:
    world = World(seed, odds)
    seen: dict[object, object] = {}

    def look() -> None:
        if "LIST" not in world.objects:
            return
        outputs = world.outputs()
        # What a reader has seen once stays, whoever else does the item again.
        assert seen.items() <= outputs.items()
        seen.update(outputs)

    world.run(look)
    look()
    return world


@pytest.mark.parametrize("seed", range(_HISTORIES))
def test_no_output_is_lost_doubled_or_changed(seed: int) -> None:
    """And no kill, freeze or loss of a lease costs more than `every_items`."""
    odds = Odds(shares=1 + seed % 3, every_items=1 + seed % 5)
    if seed % 4 == 0:
        # Leases that run out under workers that live.
        odds = replace(odds, lease_seconds=15.0, freeze=0.02)
    elif seed % 4 == 1:
        # A store that takes nothing for a while: what is unsaved reaches its bound.
        odds = replace(odds, output_fault=0.4)
    world = _play(seed, odds)
    assert max(world.in_vain().values(), default=0) <= odds.every_items


def test_the_histories_are_hard() -> None:
    """Kills and takeovers happen in them, and items are done again: else they would show nothing."""
    worlds = [_play(seed, Odds(kill=0.02, items=60, every_items=5)) for seed in range(100, 110)]
    assert sum(world.kills for world in worlds) > 40
    assert sum(sum(world.in_vain().values()) for world in worlds) > 8


@pytest.mark.parametrize("seed", range(20))
def test_without_conditional_writes_all_is_there_and_once(seed: int) -> None:
    """Two workers may then both believe to have a share: work is lost, and no output."""
    World(seed, Odds(is_conditional=False, shares=1 + seed % 3, lease_seconds=15.0, freeze=0.02)).run()
