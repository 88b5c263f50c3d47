# SPDX-License-Identifier: Apache-2.0
"""What a deadline is worth here: on our two clocks, in the cloud's window, and within what can be planned.

It knows nothing of cases and of what is done in time.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from spotwatch.model import Kind, Notice

STALE_SECONDS = 300.0
"""Present at the first poll and this far past by the server's own Date: left over, not acted upon.

AWS leaves the original time in the metadata after a failed termination (EC2 User Guide, "Spot Instance
interruption notices", read 2026-11-29)."""
SKEW_SECONDS = 5.0
"""Two clocks this near are both right: an HTTP Date is in whole seconds, and was on its way."""
PAST_SECONDS = 86400.0
FAR_SECONDS = 20 * 365 * 86400.0
"""A deadline farther away than these two is as good as one that far: planning adds to it and takes from it,
and before a zero time (year 1, as Go writes one that was never set) there is nothing."""


def on_both_clocks(
    notice: Notice, *, now: datetime, boot: float, skew_seconds: float = 0.0
) -> tuple[datetime | None, float | None]:
    """Return the deadline on both clocks, never farther from now than the cloud's documented window.

    Args:
        notice: gives the deadline in the cloud's time.
        now: our wall clock.
        boot: our boot clock.
        skew_seconds: how much later it is by the cloud's clock; the clock that is ahead counts.
    """
    if notice.deadline is None:
        return None, None
    given = (notice.deadline - now).total_seconds()
    seconds = given - max(0.0, skew_seconds)
    if notice.window_seconds is not None:
        seconds = min(seconds, notice.window_seconds)
    seconds = bounded_seconds(seconds)
    # The cloud's own moment where nothing changes it: on the way over seconds, a microsecond would be lost.
    return notice.deadline if seconds == given else now + timedelta(seconds=seconds), boot + seconds


def latest_end(notice: Notice, *, now: datetime, boot: float, skew_seconds: float) -> float | None:
    """Return when the machine ends on the boot clock, by the one of both wall clocks that gives it longer."""
    if notice.deadline is None:
        return None
    seconds = (notice.deadline - now).total_seconds() - min(0.0, skew_seconds)
    if notice.window_seconds is not None:
        seconds = min(seconds, notice.window_seconds)
    return boot + bounded_seconds(seconds)


def bounded_seconds(seconds: float) -> float:
    """Return `seconds` from now, or as far as can be planned with."""
    return max(-PAST_SECONDS, min(FAR_SECONDS, seconds))


def plannable(moment: datetime, now: datetime) -> datetime:
    """Return `moment` itself, or the nearest one that can be planned with."""
    given = (moment - now).total_seconds()
    seconds = bounded_seconds(given)
    return moment if seconds == given else now + timedelta(seconds=seconds)


def skew(now: datetime, server_at: datetime | None) -> float:
    """Return how far our wall clock is behind the server's, in seconds; a few are a slow answer, and none."""
    behind = 0.0 if server_at is None else (server_at - now).total_seconds()
    return behind if abs(behind) > SKEW_SECONDS else 0.0


def is_stale(notice: Notice, server_at: datetime) -> bool:
    """Tell whether a notice found at the first poll is one that the cloud left behind."""
    if notice.deadline is None or notice.kind is not Kind.RECLAIM or notice.has_started:
        return False
    return (server_at - notice.deadline).total_seconds() > STALE_SECONDS
