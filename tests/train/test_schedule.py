# SPDX-License-Identifier: Apache-2.0
"""When a periodic save is due, and what failures do to that."""

from __future__ import annotations

import time

import pytest

from spotwatch.errors import ConfigError
from spotwatch.train.schedule import Schedule, pause_seconds


def test_each_multiple_is_due() -> None:
    """Every so many steps, counted from zero, whatever step was resumed from."""
    schedule = Schedule("auto", 600, None)
    schedule.begin(0)
    assert schedule.next_step == 600
    schedule.begin(1892)
    assert schedule.next_step == 2400
    schedule.saved(2400, 10.0)
    assert schedule.next_step == 3000


@pytest.mark.parametrize(("stall", "seconds"), [(0.1, 60.0), (2.0, 240.0), (500.0, 1800.0)])
def test_auto_follows_the_worst_of_the_last_stalls(stall: float, seconds: float) -> None:
    """The interval is computed from what was measured, and forgets after five saves."""
    schedule = Schedule("auto", None, None)
    schedule.saved(1, stall)
    schedule.saved(2, 0.01)
    assert schedule.next_at - time.monotonic() == pytest.approx(seconds, abs=1)
    for step in range(5):
        schedule.saved(step, 0.01)
    assert schedule.next_at - time.monotonic() == pytest.approx(60, abs=1)


def test_seconds() -> None:
    """A fixed interval is kept whatever a save costs."""
    schedule = Schedule("auto", None, 300)
    schedule.saved(5, 100.0)
    assert schedule.next_at - time.monotonic() == pytest.approx(300, abs=1)


def test_a_failed_save_is_due_again_soon() -> None:
    """Not at the next multiple, and not at the very next step."""
    schedule = Schedule("auto", 600, None)
    schedule.begin(600)
    pause = schedule.failed()
    assert 1 <= pause <= 2
    assert schedule.next_at == schedule.pause_until
    schedule.saved(700, 1.0)
    assert (schedule.failures, schedule.next_step) == (0, 1200)


def test_pauses_grow_to_a_minute() -> None:
    """Doubling with jitter, never beyond a minute, also after very many."""
    assert all(30 <= pause_seconds(n) <= 60 for n in (6, 20, 5000))


@pytest.mark.parametrize(
    ("every", "steps", "seconds"),
    [("600", None, None), ("auto", 0, None), ("auto", None, -1.0), ("auto", 5, 5.0)],
)
def test_nonsense_is_refused(every: str, steps: int | None, seconds: float | None) -> None:
    """Every contradiction is a configuration error."""
    with pytest.raises(ConfigError):
        Schedule(every, steps, seconds)
