# SPDX-License-Identifier: Apache-2.0
"""Whether the save under way moves, and how long all ranks wait for one that may not.

It knows neither stores nor steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from spotwatch.train.attendance import Request
from spotwatch.train.background import Background
from spotwatch.train.world import World

QUIET_SECONDS = 30.0
"""A save that has not moved for so long, when there is no time left, is not waited for.

One that moves is: deadlines are often kept late, and an upload cut off is worth nothing.
"""
# How often ranks that wait together compare notes; a process that is alone looks at its own.
_COMPARE_SECONDS = 1.0
_LOOK_SECONDS = 0.1


class Movement(Request):
    """When the save of this rank has moved last. The saving thread writes, the training thread reads.

    Attended by the saving thread, it also moves with each answer of the store to a small request.
    """

    def __init__(self) -> None:
        super().__init__("save", math.inf, math.inf)
        self._sent_bytes = 0
        self._waits = False

    @property
    def quiet_seconds(self) -> float:
        """Return for how long the save has not moved; 0 without one, and while it waits for other ranks."""
        # While others are waited for, it is theirs to say that nothing moves.
        return 0.0 if self._waits else self._idle_seconds

    @property
    def is_idle(self) -> bool:
        """Tell whether it has not moved here for `QUIET_SECONDS`, whoever it waits for."""
        return self._idle_seconds > QUIET_SECONDS

    def begin(self) -> None:
        """Note that a save begins."""
        self._sent_bytes = 0
        self.stage(waits=False)

    def sent(self, sent_bytes: int) -> None:
        """Note how much has been sent; a change is a movement."""
        if sent_bytes != self._sent_bytes:
            self._sent_bytes = sent_bytes
            self.moved()

    def stage(self, *, waits: bool) -> None:
        """Note that the next thing begins, and whether that is a wait for other ranks."""
        self._moved_at, self._waits = time.monotonic(), waits

    def end(self) -> None:
        """Note that there is nothing to wait for."""
        self._moved_at, self._waits = math.inf, False

    def why_given_up(self, url: str) -> str:
        """Return what is said of a save to the store at `url` that is not waited for any longer."""
        whose = "" if self.quiet_seconds > QUIET_SECONDS else " of another rank"
        return f"{url} has taken no more{whose} for {max(self._idle_seconds, QUIET_SECONDS):.0f} s"

    @property
    def _idle_seconds(self) -> float:
        return max(time.monotonic() - self._moved_at, 0.0)


def wait_together(
    world: World, background: Background[Any], movement: Movement, is_late: Callable[[], bool]
) -> bool:
    """Wait until no rank has a save under way, or all give it up; signals are handled meanwhile.

    All ranks call it at the same point. They give up together: once it is late on one of them, and a save has
    not moved on one of them for `QUIET_SECONDS`.

    Args:
        world: the ranks.
        background: does the save of this rank.
        movement: of this rank's save.
        is_late: asked about once a second; there is no more time for a store that takes nothing.

    Returns:
        Whether none is under way any more; the same on all ranks.

    Raises:
        RankGone: a rank has gone.
    """
    pause = _LOOK_SECONDS if world.size == 1 else _COMPARE_SECONDS
    while True:
        until = time.monotonic() + pause
        is_over = background.join(lambda until=until: time.monotonic() >= until)  # type: ignore[misc]
        quiet_ms = int(1000 * movement.quiet_seconds)
        busy, late, quietest_ms = world.greatest([int(not is_over), int(is_late()), quiet_ms])
        if not busy:
            return True
        if late and quietest_ms > 1000 * QUIET_SECONDS:
            return False
