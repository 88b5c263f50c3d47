# SPDX-License-Identifier: Apache-2.0
"""A done-list whose workers are killed again and again: every output once, and few items done twice."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from .done_lives import Batch, batch

pytestmark = pytest.mark.timeout(240)

_ITEMS = 10_000
_KILLS = 50
_EVERY = 25


def _kill_at_random(made: Batch, pid: int, chance: random.Random, most_items: int) -> None:
    begun = made.count()
    wanted = begun + chance.randint(0, most_items)
    made.wait(lambda: made.count() >= wanted)
    # Anywhere between two items, within a save, or before the first.
    time.sleep(chance.random() * 0.01)
    made.kill(pid)


def test_ten_thousand_items_and_fifty_kills(tmp_path: Path) -> None:
    """Each output is there once in the end, and no kill costs more than `every_items`."""
    chance = random.Random(6)
    with batch(tmp_path, items=_ITEMS, every_items=_EVERY, seconds=0.0002) as made:
        for _ in range(_KILLS):
            _kill_at_random(made, made.start(), chance, 2 * _ITEMS // _KILLS - 150)
        made.run()
        made.expect_all(_ITEMS)
        redone = made.redone()
        assert sum(redone.values()) == made.count() - _ITEMS
        assert max(redone.values()) <= _EVERY
        # What writers that died have left is removed.
        assert not list(Path(made.store).rglob("*.tmp"))
        # Kills that cost nothing would show nothing.
        assert len(redone) > _KILLS // 2


def test_three_workers_under_kills(tmp_path: Path) -> None:
    """The same with three at once: what the dead have left, others take over."""
    chance = random.Random(7)
    with batch(tmp_path, items=_ITEMS, every_items=_EVERY, seconds=0.0005, shares=6) as made:
        workers = [made.start() for _ in range(3)]
        for _ in range(_KILLS):
            pid = workers.pop(chance.randrange(3))
            _kill_at_random(made, pid, chance, 2 * _ITEMS // _KILLS - 200)
            workers.append(made.start())
        for pid in workers:
            made.end(pid, 0)
        made.expect_all(_ITEMS)
        redone = made.redone()
        assert max(redone.values()) <= _EVERY
        assert len(redone) > _KILLS // 2


def test_told_to_stop_nothing_is_done_twice(tmp_path: Path) -> None:
    """SIGTERM at random moments costs no item: what is finished is durable, and the next is not begun."""
    chance = random.Random(8)
    items = 2_000
    with batch(tmp_path, items=items, every_items=1000, every_seconds=1000, seconds=0.0005) as made:
        for _ in range(8):
            pid = made.start()
            wanted = made.count() + chance.randint(1, 200)
            made.wait(lambda wanted=wanted: made.count() >= wanted)  # type: ignore[misc]
            os.kill(pid, signal.SIGTERM)
            made.end(pid, 75)
        made.run(size=7)
        made.expect_all(items)
        assert made.count() == items
