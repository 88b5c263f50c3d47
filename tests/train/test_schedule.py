# SPDX-License-Identifier: Apache-2.0
"""When a periodic save is due, and what failures do to that."""

from __future__ import annotations

import math
import time

import pytest

from spotwatch.errors import ConfigError
from spotwatch.train import schedule as schedule_module
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
    assert schedule.next_step == 1  # nothing is known yet
    schedule.saved(5.0)
    assert schedule.interval_seconds == 45
    for other in ({"every_steps": 5}, {"every_seconds": 5.0}):
        with pytest.raises(ConfigError, match="max_lost_seconds"):
            Schedule("auto", other.get("every_steps"), other.get("every_seconds"), 50.0)  # type: ignore[arg-type]


class Played:
    """A run on a clock of its own: steps and saves take what a test says, and what is at risk is noted.

    Args:
        max_lost_seconds: what the user allows.
        step_seconds: what a step takes.
        save_seconds: what a save takes until it is durable.
        is_shared: ranks act a step later, unless steps are long.
    """

    def __init__(
        self, max_lost_seconds: float, step_seconds: float, save_seconds: float, *, is_shared: bool = False
    ) -> None:
        self.schedule = Schedule("auto", None, None, max_lost_seconds)
        self.step_seconds = step_seconds
        self.save_seconds = save_seconds
        self.now = 1000.0
        self.step = 0
        self.worst_seconds = 0.0
        self.told: list[str] = []
        self.saved_steps: list[int] = []
        self._is_shared = is_shared
        self._was_due = False
        self._safe_until = self.now
        self._save: tuple[float, float] | None = None

    def monotonic(self) -> float:
        """Return the moment, in place of `time`."""
        return self.now

    def begin(self, step: int = 0) -> None:
        """Begin a life."""
        self.schedule.begin(step, is_shared=self._is_shared)
        self.step, self._safe_until, self._save = step, self.now, None

    def train(self, steps: int) -> None:
        """Take so many steps, and do at the end of each what the loop does."""
        for _ in range(steps):
            self.step += 1
            self.now += self.step_seconds
            self._end_step()

    def _end_step(self) -> None:
        schedule = self.schedule
        if self._save is not None and self._save[1] <= self.now:
            begun, ended = self._save
            self._note(ended)
            self._safe_until, self._save = begun, None
            schedule.saved(ended - begun)
        self._note(self.now)
        is_due = self.now >= schedule.next_at
        if (
            self._was_due if self._is_shared and self.step_seconds < 5 else is_due
        ) or self.step >= schedule.next_step:
            if self._save is not None:
                schedule.skip(self.step, self.now - self._save[0])
            else:
                self.saved_steps.append(self.step)
                self._save = (self.now, self.now + self.save_seconds)
                schedule.staged(self.step, 0.0)
        self._was_due = self.now >= schedule.next_at
        if problem := schedule.broken_bound():
            self.told.append(problem)

    def _note(self, at: float) -> None:
        self.worst_seconds = max(self.worst_seconds, at - self._safe_until)


@pytest.mark.parametrize(
    ("allowed", "step", "save"),
    [(8, 2, 1), (8, 1.5, 2.1), (8, 1.2, 2), (60, 0.5, 20), (60, 0.01, 0.1), (300, 20, 90), (10, 3, 0.5)],
)
@pytest.mark.parametrize("is_shared", [False, True])
def test_in_no_life_more_is_lost_than_allowed(
    monkeypatch: pytest.MonkeyPatch, allowed: float, step: float, save: float, is_shared: bool
) -> None:
    """From the first step of the first life on, before anything is known of saves, and in the next life."""
    run = Played(allowed, step, save, is_shared=is_shared)
    monkeypatch.setattr(schedule_module, "time", run)
    for _ in range(2):
        begun = run.step
        run.begin(begun)
        run.train(int(10 * allowed / step))
        assert begun + 1 in run.saved_steps
    assert run.worst_seconds <= allowed + 1e-6
    assert not run.told
    assert len(run.saved_steps) < 25 * allowed / (allowed - save - step)


@pytest.mark.parametrize(("allowed", "step", "save"), [(8, 0.1, 5), (8, 7, 2), (8, 9, 0.1)])
def test_a_bound_that_cannot_be_kept_is_told_once(
    monkeypatch: pytest.MonkeyPatch, allowed: float, step: float, save: float
) -> None:
    """With the figures that break it, as soon as they are known, and once more in the next life."""
    run = Played(allowed, step, save)
    monkeypatch.setattr(schedule_module, "time", run)
    run.begin()
    run.train(200)
    assert [f"max_lost_seconds={allowed} cannot be kept" in told for told in run.told] == [True]
    assert run.worst_seconds > allowed
    run.begin(run.step)
    run.train(200)
    assert len(run.told) == 2


def test_a_slow_first_step_breaks_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have compiled; nothing is told of it, and the steps after it are measured by themselves."""
    run = Played(30, 1, 3)
    monkeypatch.setattr(schedule_module, "time", run)
    run.begin()
    run.step_seconds = 40.0
    run.train(1)
    assert run.saved_steps == [1]
    run.step_seconds = 1.0
    run.train(100)
    assert not run.told
    assert run.schedule.interval_seconds == pytest.approx(26)


def test_a_save_that_becomes_slow_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is still on its way, for the work at risk grows meanwhile."""
    run = Played(20, 1, 2)
    monkeypatch.setattr(schedule_module, "time", run)
    run.begin()
    run.train(50)
    run.save_seconds = 500.0
    assert not run.told
    run.train(100)
    assert len(run.told) == 1


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
