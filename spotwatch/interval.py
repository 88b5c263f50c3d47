# SPDX-License-Identifier: Apache-2.0
"""How often to save: the interval that loses least to saving and to work done twice.

It measures nothing and knows no clock. Pure; standard library only.
"""

from __future__ import annotations

import math

RECLAIM_EVERY_SECONDS = 4 * 3600.0
"""The mean time between losses that is assumed until a run has measured its own."""
LEAST_SECONDS = 60.0
MOST_SECONDS = 1800.0
UPLOADING_SHARE = 0.25
"""An upload competes with the loop for memory, cores and link: at most this share of the time."""


def save_interval_seconds(
    stall_seconds: float,
    *,
    save_seconds: float = 0.0,
    step_seconds: float = 0.0,
    reclaim_every_seconds: float = RECLAIM_EVERY_SECONDS,
    max_lost_seconds: float = math.inf,
    least_seconds: float = LEAST_SECONDS,
    most_seconds: float = MOST_SECONDS,
) -> float:
    """Return the seconds from the beginning of one save to that of the next: sqrt(2 C M) within the bounds.

    J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; that it
    holds for iterative programs: hal-02514107. M counts losses without notice only: one that is announced in
    time costs no work, so with a share q of those, M is the mean time between all losses over 1 - q.

    Args:
        stall_seconds: C, for how long one save keeps the loop from training.
        save_seconds: from the beginning of a save until it is durable. Longer bounds win over shorter ones:
            saves are at least four times as far apart.
        step_seconds: of one training step; a save waits for its end.
        reclaim_every_seconds: M, mean time between losses that come without enough notice.
        max_lost_seconds: how much work a loss without notice may cost at worst: the interval, the time until
            the save is durable, and one step. It wins over all other bounds, but no save is begun before the
            one before it is durable.
        least_seconds: never more often than this.
        most_seconds: never more seldom than this; it bounds what one loss can cost.
    """
    best = math.sqrt(2 * max(stall_seconds, 0.0) * max(reclaim_every_seconds, 0.0))
    save_seconds = max(save_seconds, 0.0)
    seconds = min(max(best, least_seconds), most_seconds)
    seconds = max(seconds, save_seconds / UPLOADING_SHARE)
    return max(min(seconds, max_lost_seconds - save_seconds - max(step_seconds, 0.0)), save_seconds, 0.0)
