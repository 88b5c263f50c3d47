# SPDX-License-Identifier: Apache-2.0
"""When a periodic save is due, and what failures do to that."""

from __future__ import annotations

import math
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
    schedule.staged(2400, 10.0)
    assert schedule.next_step == 3000


@pytest.mark.parametrize(("stall", "seconds"), [(0.1, 60.0), (2.0, 240.0), (500.0, 1800.0)])
def test_auto_follows_the_worst_of_the_last_stalls(stall: float, seconds: float) -> None:
    """The interval is computed from what was measured, and forgets after five saves."""
    schedule = Schedule("auto", None, None)
    schedule.staged(1, stall)
    schedule.staged(2, 0.01)
    assert schedule.next_at - time.monotonic() == pytest.approx(seconds, abs=1)
    for step in range(5):
        schedule.staged(step, 0.01)
    assert schedule.next_at - time.monotonic() == pytest.approx(60, abs=1)


def test_seconds() -> None:
    """A fixed interval is kept whatever a save costs."""
    schedule = Schedule("auto", None, 300)
    schedule.staged(5, 100.0)
    schedule.saved(200.0)
    assert schedule.next_at - time.monotonic() == pytest.approx(300, abs=1)


def test_a_failed_save_is_due_again_soon() -> None:
    """By the clock, before the next multiple, and not at the very next step."""
    schedule = Schedule("auto", 600, None)
    schedule.begin(600)
    pause = schedule.failed()
    assert 1 <= pause <= 2
    assert schedule.next_at == schedule.pause_until
    schedule.staged(700, 0.1)
    schedule.saved(1.0)
    assert (schedule.failures, schedule.next_step, schedule.next_at) == (0, 1200, math.inf)


def test_a_save_that_is_passed_over_lengthens_the_interval() -> None:
    """The one before is still on its way: the next is as far away as four times what is known of it."""
    schedule = Schedule("auto", None, None)
    schedule.staged(10, 0.1)
    assert schedule.interval_seconds == 60
    schedule.skip(20, 50.0)
    assert schedule.interval_seconds == 200
    assert schedule.next_at - time.monotonic() == pytest.approx(200, abs=1)
    assert schedule.skipped == 1


def test_a_multiple_passed_over_after_a_failure_keeps_the_moment_of_the_next_try() -> None:
    """The pause after a failure is neither cut short nor drawn out by a multiple that falls into it."""
    schedule = Schedule("auto", 10, None)
    schedule.begin(0)
    schedule.failed()
    schedule.skip(10, None)
    assert (schedule.next_step, schedule.next_at) == (20, schedule.pause_until)


def test_what_may_be_lost_bounds_the_interval() -> None:
    """The interval, the way to the store and a step together are no longer than the user allows."""
    schedule = Schedule("auto", None, None, max_lost_seconds=50.0)
    schedule.begin(0)
    schedule.saved(5.0)
    assert schedule.interval_seconds == 45
    for other in ({"every_steps": 5}, {"every_seconds": 5.0}):
        with pytest.raises(ConfigError, match="max_lost_seconds"):
            Schedule("auto", other.get("every_steps"), other.get("every_seconds"), 50.0)  # type: ignore[arg-type]


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
