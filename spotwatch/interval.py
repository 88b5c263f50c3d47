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


def save_interval_seconds(
    stall_seconds: float,
    *,
    reclaim_every_seconds: float = RECLAIM_EVERY_SECONDS,
    least_seconds: float = LEAST_SECONDS,
    most_seconds: float = MOST_SECONDS,
) -> float:
    """Return the seconds from one save to the next: sqrt(2 C M) within the bounds.

    J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974.

    Args:
        stall_seconds: C, for how long one save keeps the loop from training.
        reclaim_every_seconds: M, mean time between losses that come without enough notice.
        least_seconds: never more often than this.
        most_seconds: never more seldom than this; it bounds what one loss can cost.
    """
    best = math.sqrt(2 * max(stall_seconds, 0.0) * max(reclaim_every_seconds, 0.0))
    return min(max(best, least_seconds), most_seconds)
