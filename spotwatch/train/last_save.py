# SPDX-License-Identifier: Apache-2.0
"""The last save before the loop is left: tried until it is durable, for as long as there is time.

All ranks call it together. What becomes of the outcome is in `checkpointer`.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import Any

from spotwatch.errors import ConfigError, RunTaken
from spotwatch.train.link import Link
from spotwatch.train.saving import Saver
from spotwatch.train.schedule import Schedule, pause_seconds
from spotwatch.train.world import World

log = logging.getLogger("spotwatch.train")

# How long a last save is tried again when no deadline is known, and what is left for the exit when one is.
_TRIES_SECONDS = 30.0
_EXIT_SECONDS = 2.0
# A store that has taken nothing for so long, when there is no time left, is not waited for. One that still
# takes something is: deadlines are often kept late, and an upload cut off is worth nothing.
QUIET_SECONDS = 30.0


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
        """Tell whether there is a durable checkpoint of what counts.

        A save under way is finished first, never begun anew.
        """
        saver = self._saver
        self._give_up_at = time.monotonic() + self._seconds_left()
        is_over = saver.end(self._is_hopeless)
        rows: list[Any] = self._world.everyone([is_over, saver.taken, step])
        if not all(row[0] for row in rows):
            log.error("step %d is not saved: the save before it was not finished in time", step)
            return False
        if any(row[1] for row in rows):
            saver.lose()
            return False
        # A rank whose loop was shorter takes part in the last save of the others.
        last = max(row[2] for row in rows)
        if all(self._world.everyone(last == saver.saved_step)):
            saver.answer(self._link.orders.mark())
            return True
        self._schedule.failures = 0
        return self._try(step, healthy=healthy)

    def _try(self, step: int, *, healthy: bool) -> bool:
        while True:
            try:
                self._saver.save(step, healthy=healthy, is_hopeless=self._is_hopeless)
            except RunTaken:
                log.exception("step %d is not saved", step)
                return False
            except Exception as error:
                self._saver.failed(step, error)
                pause = pause_seconds(self._schedule.failures)
                is_final = self._saver.busy or isinstance(error, ConfigError)
                rows: list[Any] = self._world.everyone([is_final, self._is_late(pause), pause])
                # They try together or not at all: the first rank's clock counts, and any rank's despair.
                if any(row[0] for row in rows) or rows[0][1]:
                    log.exception("step %d is not saved", step)
                    return False
                time.sleep(rows[0][2])
            else:
                return self._saver.has_durable

    def _is_hopeless(self) -> bool:
        return self._is_late(0.0) and self._saver.quiet_seconds > QUIET_SECONDS

    def _is_late(self, seconds: float) -> bool:
        return time.monotonic() + seconds > self._give_up_at

    def _seconds_left(self) -> float:
        deadline = self._link.orders.deadline
        seconds = _TRIES_SECONDS
        if deadline is not None:
            seconds = (deadline - datetime.now(UTC)).total_seconds() - _EXIT_SECONDS
        rows: list[Any] = self._world.everyone(seconds)
        return min(float(row) for row in rows)
