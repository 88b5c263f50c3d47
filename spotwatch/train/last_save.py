# SPDX-License-Identifier: Apache-2.0
"""The last save before the loop is left: tried until it is durable, for as long as there is time.

All ranks call it together, and compare how each attempt went, whatever that was: so they agree whether the
step is durable, and leave together. What becomes of the outcome is in `checkpointer`.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from spotwatch.errors import ConfigError, RankGone, RunTaken
from spotwatch.train.link import Link
from spotwatch.train.saving import Saver
from spotwatch.train.schedule import Schedule, pause_seconds
from spotwatch.train.world import World

log = logging.getLogger("spotwatch.train")

# How long a last save is tried again when no deadline is known, and what is left for the exit when one is.
_TRIES_SECONDS = 30.0
_EXIT_SECONDS = 2.0


class _Went(Enum):
    """How an attempt went on one rank."""

    SAVED = "saved"
    FAILED = "failed"
    FINAL = "final"
    """It failed, and another attempt would not end otherwise, or cannot begin."""
    TAKEN = "taken"


class LastSave:
    """Saves what is not saved, again and again while there is time.

    Args:
        saver: makes the saves.
        schedule: counts what fails.
        link: knows the deadline.
        world: the ranks.
    """

    def __init__(self, saver: Saver, schedule: Schedule, link: Link, world: World) -> None:
        self._saver = saver
        self._schedule = schedule
        self._link = link
        self._world = world
        self._give_up_at = 0.0

    def make(self, step: int, *, healthy: bool) -> bool:
        """Tell whether there is a durable checkpoint of what counts; the same on all ranks.

        A save under way is finished first, never begun anew. When a rank has gone, there is none to be had.
        """
        try:
            return self._make(step, healthy=healthy)
        except RankGone as error:
            log.error("step %d is not saved: %s", step, error)  # noqa: TRY400 - a trace adds nothing
            return False

    def _make(self, step: int, *, healthy: bool) -> bool:
        saver = self._saver
        self._give_up_at = time.monotonic() + self._seconds_left()
        is_over = saver.end(self._is_late)
        rows: list[Any] = self._world.everyone([is_over, saver.taken, step])
        if not all(row[0] for row in rows):
            log.error("step %d is not saved: the save before it was not finished in time", step)
            return False
        if any(row[1] for row in rows):
            self._lose(step)
            return False
        # A rank whose loop was shorter takes part in the last save of the others.
        last = max(row[2] for row in rows)
        is_saved = (last, saver.changes) == (saver.saved_step, saver.saved_changes)
        if all(self._world.everyone(is_saved)):
            saver.answer(self._link.orders.mark())
            return True
        self._schedule.failures = 0
        return self._try(step, healthy=healthy)

    def _try(self, step: int, *, healthy: bool) -> bool:
        while True:
            went, pause = self._attempt(step, healthy=healthy)
            is_late = self._is_late(pause)
            rows: list[Any] = self._world.everyone([went.value, is_late, pause, self._saver.has_durable])
            all_went = {_Went(row[0]) for row in rows}
            if _Went.TAKEN in all_went:
                self._lose(step)
                return False
            if all_went == {_Went.SAVED}:
                return all(row[3] for row in rows)
            # They try together or not at all, also where only some have heard that it is durable.
            if _Went.FINAL in all_went or any(row[1] for row in rows):
                log.error(
                    "step %d is not saved: %s", step, self._saver.last_error or "another rank has failed"
                )
                return False
            time.sleep(max(row[2] for row in rows))

    def _attempt(self, step: int, *, healthy: bool) -> tuple[_Went, float]:
        """Save once, and return how it went and how long to wait before the next attempt."""
        try:
            self._saver.save(step, healthy=healthy, is_late=self._is_late)
        except RankGone:
            raise
        except RunTaken:
            return _Went.TAKEN, 0.0
        except Exception as error:  # noqa: BLE001 - told to all ranks, who decide together what follows
            self._saver.failed(step, error)
            is_final = self._saver.busy or isinstance(error, ConfigError)
            pause = pause_seconds(self._schedule.failures)
            return (_Went.FINAL if is_final else _Went.FAILED), pause
        return _Went.SAVED, 0.0

    def _lose(self, step: int) -> None:
        self._saver.lose()
        log.error("step %d is not saved: another process has gone on with this run", step)

    def _is_late(self, seconds: float = 0.0) -> bool:
        return time.monotonic() + seconds > self._give_up_at

    def _seconds_left(self) -> float:
        deadline = self._link.orders.deadline
        # What was given up because of the stop has had its time, also where the loop was waiting for it.
        seconds = 0.0 if self._saver.is_given_up else _TRIES_SECONDS
        if deadline is not None:
            seconds = (deadline - datetime.now(UTC)).total_seconds() - _EXIT_SECONDS
        rows: list[Any] = self._world.everyone(seconds)
        return min(float(row) for row in rows)
