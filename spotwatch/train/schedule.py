# SPDX-License-Identifier: Apache-2.0
"""When the next periodic save is due: every so many steps, every so many seconds, or as measured.

Orders and signals come beside it. It does not save.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from typing import SupportsIndex

from spotwatch.errors import ConfigError
from spotwatch.interval import save_interval_seconds
from spotwatch.train import arguments

_LAST_STALLS = 5
_FIRST_PAUSE_SECONDS = 2.0
_MOST_PAUSE_SECONDS = 60.0


class Schedule:
    """Keeps the step and the moment at which the next save is due.

    Args:
        every: `"auto"`, from measured stalls.
        every_steps: at each multiple of it; replaces `every`.
        every_seconds: replaces `every`.

    Raises:
        ConfigError: two are given, or one is not positive.
    """

    def __init__(self, every: str, every_steps: SupportsIndex | None, every_seconds: float | None) -> None:
        if every != "auto":
            raise ConfigError(f'every={every!r}: only "auto"; otherwise every_steps=N or every_seconds=S')
        if every_steps is not None and every_seconds is not None:
            raise ConfigError("give every_steps or every_seconds, not both")
        self._every_steps = None if every_steps is None else arguments.whole("every_steps", every_steps)
        self._every_seconds = (
            None if every_seconds is None else arguments.seconds("every_seconds", every_seconds)
        )
        self._stalls: deque[float] = deque(maxlen=_LAST_STALLS)
        self.next_step: float = -math.inf
        """Every step, until `begin` and after `end`: the loop is to look whether it may go on at all."""
        self.next_at: float = math.inf
        """On the monotonic clock."""
        self.pause_until: float = -math.inf
        """After a failed save, not again before this moment unless told to stop."""
        self.failures = 0

    def begin(self, step: int) -> None:
        """Count from `step`, which needs no save."""
        self.pause_until = -math.inf
        self.failures = 0
        if self._every_steps is not None:
            self.next_step = (step // self._every_steps + 1) * self._every_steps
            self.next_at = math.inf
            return
        self.next_step = math.inf
        seconds = self._every_seconds
        if seconds is None:
            seconds = save_interval_seconds(max(self._stalls, default=0.0))
        self.next_at = time.monotonic() + seconds

    def end(self) -> None:
        """Count no longer."""
        self.next_step = -math.inf

    def saved(self, step: int, stall_seconds: float) -> None:
        """Count from a save that took the loop `stall_seconds`."""
        self._stalls.append(stall_seconds)
        self.begin(step)

    def failed(self) -> float:
        """Count a failed save and return the seconds until it is tried again, with jitter."""
        self.failures += 1
        pause = pause_seconds(self.failures)
        self.pause_until = time.monotonic() + pause
        self.next_at = min(self.next_at, self.pause_until)
        return pause


def pause_seconds(failures: int) -> float:
    """Return how long to wait after so many failures in a row: doubling, to a minute, halved by chance."""
    longest = min(math.ldexp(_FIRST_PAUSE_SECONDS, min(failures - 1, 10)), _MOST_PAUSE_SECONDS)
    # A generator of its own: drawing from the global one would change what the trainer draws.
    return longest * random.SystemRandom().uniform(0.5, 1.0)
