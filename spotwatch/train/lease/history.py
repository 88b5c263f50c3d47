# SPDX-License-Identifier: Apache-2.0
"""The last lives of a run: for how long each machine had it, and how that ended.

From these follows how often a machine is lost without notice. It reads no clock and no store.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwatch.interval import RECLAIM_EVERY_SECONDS

STOPPED = "stopped"
FINISHED = "finished"
FAILED = "failed"
LOST = "lost"
ENDINGS = (STOPPED, FINISHED, FAILED)
"""What a process can say itself as it ends."""
MOST_LIVES = 20


@dataclass(frozen=True, slots=True)
class Life:
    """One process's time with the run.

    Args:
        seconds: for how long it had the run.
        ended: `stopped`, `finished` or `failed`, as it said; `lost`: without a word; empty: it goes on.
    """

    seconds: float
    ended: str


@dataclass(frozen=True, slots=True)
class History:
    """The last lives of a run, the oldest first; at most `MOST_LIVES`."""

    lives: tuple[Life, ...] = ()

    def followed_by(self, life: Life) -> History:
        """Return this history with one more life at its end; the oldest falls out when there are too many."""
        return History((*self.lives, life)[-MOST_LIVES:])

    def reclaim_every_seconds(self, prior_seconds: float = RECLAIM_EVERY_SECONDS) -> float:
        """Return the mean seconds between losses that came without notice.

        Lives that ended otherwise, and the one that goes on, add their time and no loss.

        Args:
            prior_seconds: what is assumed without any history; it weighs as much as one loss after that time.
        """
        lost = sum(life.ended == LOST for life in self.lives)
        return (prior_seconds + sum(life.seconds for life in self.lives)) / (1 + lost)
