# SPDX-License-Identifier: Apache-2.0
"""When the next periodic save is due: every so many steps, every so many seconds, or as measured.

Orders and signals come beside it. It does not save. All ranks of a run keep equal step counts in it; of
their clocks only the first rank's matters.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from typing import SupportsIndex

from spotwatch.errors import ConfigError
from spotwatch.interval import RECLAIM_EVERY_SECONDS, save_interval_seconds
from spotwatch.train import arguments

_LAST_SAVES = 5
_FIRST_PAUSE_SECONDS = 2.0
_MOST_PAUSE_SECONDS = 60.0
# Ranks whose steps are shorter agree one step later, or when steps are very short so much later.
_LONG_STEP_SECONDS = 5.0
_ROUND_SECONDS = 0.1


class Schedule:
    """Keeps the step and the moment at which the next save is due.

    Args:
        every: `"auto"`, from what was measured.
        every_steps: at each multiple of it; replaces `every`.
        every_seconds: replaces `every`.
        max_lost_seconds: what a loss without notice may cost at worst; only with `"auto"`. The first step is
            due then, so that it is known what a save takes.

    Raises:
        ConfigError: two are given, or one is not positive.
    """

    def __init__(
        self,
        every: str,
        every_steps: SupportsIndex | None,
        every_seconds: float | None,
        max_lost_seconds: float | None = None,
    ) -> None:
        if every != "auto":
            raise ConfigError(f'every={every!r}: only "auto"; otherwise every_steps=N or every_seconds=S')
        if every_steps is not None and every_seconds is not None:
            raise ConfigError("give every_steps or every_seconds, not both")
        self._every_steps = None if every_steps is None else arguments.whole("every_steps", every_steps)
        self._every_seconds = (
            None if every_seconds is None else arguments.seconds("every_seconds", every_seconds)
        )
        self._max_lost_seconds = math.inf
        if max_lost_seconds is not None:
            if every_steps is not None or every_seconds is not None:
                raise ConfigError('max_lost_seconds bounds every="auto"; give it without a fixed interval')
            self._max_lost_seconds = arguments.seconds("max_lost_seconds", max_lost_seconds)
        self._stalls: deque[float] = deque(maxlen=_LAST_SAVES)
        self._saves: deque[float] = deque(maxlen=_LAST_SAVES)
        self._begun = (0, math.nan)
        self._begun_by_save = self._is_step_measured = False
        self._is_bound_told = False
        self._is_shared = False
        self._step_seconds = 0.0
        self.reclaim_every_seconds = RECLAIM_EVERY_SECONDS
        """The mean time between losses without notice."""
        self.next_step: float = -math.inf
        """Every step, until `begin` and after `end`: the loop is to look whether it may go on at all."""
        self.next_at: float = math.inf
        """On the monotonic clock."""
        self.pause_until: float = -math.inf
        """After a failed save, not again before this moment unless told to stop."""
        self.failures = 0
        self.skipped = 0
        """How many periodic saves fell out because the one before was still on its way."""

    @property
    def interval_seconds(self) -> float:
        """Return the seconds from one save to the next; infinite when steps are counted."""
        if self._every_steps is not None:
            return math.inf
        if self._every_seconds is not None:
            return self._every_seconds
        return save_interval_seconds(
            max(self._stalls, default=0.0),
            save_seconds=max(self._saves, default=0.0),
            step_seconds=self._step_seconds + self._agreeing_seconds(self._step_seconds),
            reclaim_every_seconds=self.reclaim_every_seconds,
            max_lost_seconds=self._max_lost_seconds,
        )

    def begin(self, step: int, *, is_shared: bool = False) -> None:
        """Count from `step`, which needs no save.

        Args:
            step: that was restored.
            is_shared: other ranks count with this one, and must agree before they save.
        """
        self._is_shared = is_shared
        self.pause_until = -math.inf
        self.failures = 0
        self._begun, self._begun_by_save = (step, time.monotonic()), False
        self._is_bound_told = False
        self._count_from(step)
        if self._is_bounded:
            # Nothing is known of saves here, and an interval that is too long cannot be taken back. In each
            # life, whatever this rank has measured before: all ranks must find it due.
            self.next_step = step + 1

    def end(self) -> None:
        """Count no longer."""
        self.next_step = -math.inf

    def staged(self, step: int, stall_seconds: float) -> None:
        """Count from a save that began after `step` and kept the loop for `stall_seconds`."""
        self._stalls.append(stall_seconds)
        before, since = self._begun
        now = time.monotonic()
        if step > before:
            self._step_seconds = max(now - since - stall_seconds, 0.0) / (step - before)
        # A first step may have compiled, and waited for its data: it says nothing of the others.
        self._is_step_measured = self._begun_by_save and step > before
        self._begun, self._begun_by_save = (step, now), True
        self._count_from(step)

    def saved(self, save_seconds: float) -> None:
        """Note that the last save is durable, so many seconds after it began."""
        self._saves.append(save_seconds)
        self.pause_until = -math.inf
        self.failures = 0
        if self._is_bounded:
            # The moment was chosen when less was known of how long a save takes.
            self.next_at = min(self.next_at, self._begun[1] + self.interval_seconds)

    def skip(self, step: int, so_far_seconds: float | None) -> None:
        """Pass over the save that is due after `step`.

        Args:
            step: so many are done.
            so_far_seconds: what the save before, still on its way, has taken until now; the interval grows by
                that. None: it is another reason.
        """
        self.skipped += 1
        next_at = self.next_at
        if so_far_seconds is not None:
            self._saves.append(so_far_seconds)
        self._count_from(step)
        if so_far_seconds is None:
            self.next_at = min(next_at, self.next_at)  # a failed save keeps its moment

    def failed(self) -> float:
        """Count a failed save and return the seconds until it is tried again, with jitter."""
        self.failures += 1
        pause = pause_seconds(self.failures)
        self.pause_until = time.monotonic() + pause
        self.next_at = min(self.next_at, self.pause_until)
        return pause

    def broken_bound(self) -> str:
        """Return, once in a life, that `max_lost_seconds` cannot be kept, and why; else nothing."""
        if self._is_bound_told or not (self._is_bounded and self._saves):
            return ""
        save_seconds = max(self._saves)
        step_seconds = self._step_seconds if self._is_step_measured else 0.0
        # No save begins before the one before is durable, nor within a step.
        at_risk = save_seconds
        if step_seconds > 0:
            at_risk = step_seconds * max(math.ceil(save_seconds / step_seconds), 1)
        at_risk += self._agreeing_seconds(step_seconds)
        if save_seconds + at_risk <= self._max_lost_seconds:
            return ""
        self._is_bound_told = True
        return (
            f"max_lost_seconds={self._max_lost_seconds:g} cannot be kept: a save takes {save_seconds:.3g} s"
            f"{f' and a step {step_seconds:.3g} s' if step_seconds else ''}"
            f", so a loss without notice may cost {save_seconds + at_risk:.3g} s of work"
        )

    def _agreeing_seconds(self, step_seconds: float) -> float:
        if not self._is_shared or step_seconds >= _LONG_STEP_SECONDS:
            return 0.0
        return step_seconds + _ROUND_SECONDS

    @property
    def _is_bounded(self) -> bool:
        return self._max_lost_seconds < math.inf

    def _count_from(self, step: int) -> None:
        if self._every_steps is not None:
            self.next_step = (step // self._every_steps + 1) * self._every_steps
            self.next_at = math.inf
        else:
            self.next_step = math.inf
            self.next_at = time.monotonic() + self.interval_seconds


def pause_seconds(failures: int) -> float:
    """Return how long to wait after so many failures in a row: doubling, to a minute, halved by chance."""
    longest = min(math.ldexp(_FIRST_PAUSE_SECONDS, min(failures - 1, 10)), _MOST_PAUSE_SECONDS)
    # A generator of its own: drawing from the global one would change what the trainer draws.
    return longest * random.SystemRandom().uniform(0.5, 1.0)
