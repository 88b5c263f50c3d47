# SPDX-License-Identifier: Apache-2.0
"""Whether this machine's clock is right, and whether a known end is still to come.

Deadlines are moments: a clock that is off by a minute stops a minute early, or too late. It sets no clock.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from datetime import datetime

from spotwatch.checks.clouds import Dated
from spotwatch.checks.finding import Finding, fail, ok, skip, warn
from spotwatch.model import from_rfc3339

OFF_WARN_SECONDS = 2.0
OFF_FAIL_SECONDS = 60.0
_ASK_SECONDS = 2.0
_DATE_RESOLUTION_SECONDS = 1.0
"""HTTP's Date has whole seconds, cut off (RFC 9110, section 5.6.7)."""
_MEND = "synchronise it: `timedatectl set-ntp true`, or `chronyc makestep`"


def offset_seconds(dated: Dated) -> float:
    """Return how far our clock is certain to be ahead (negative: behind), in seconds; 0 within doubt."""
    early = (dated.answered_at - dated.server_at).total_seconds()
    if early < 0:
        return early
    return max(0.0, (dated.asked_at - dated.server_at).total_seconds() - _DATE_RESOLUTION_SECONDS)


def judge_clock(dates: Sequence[Dated]) -> Finding:
    """Return what the clouds' own times, at least one, say about ours."""
    off = max((offset_seconds(dated) for dated in dates), key=abs)
    said = f"{abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} the cloud's"
    if abs(off) > OFF_FAIL_SECONDS:
        return fail("clock", said, _MEND)
    if abs(off) > OFF_WARN_SECONDS:
        return warn("clock", said, _MEND)
    return ok("clock", "agrees with the cloud's")


def ask_timedated() -> Finding:
    """Return what systemd knows of the clock, where no cloud tells the time; blocks for at most 2 s.

    Source: timedatectl(1), `NTPSynchronized`.
    """
    try:
        done = subprocess.run(
            ["timedatectl", "show", "--property=NTPSynchronized", "--value"],  # noqa: S607 - wherever the system has it
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ASK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return skip("clock", "nobody here tells whether it is right")
    match done.stdout.strip():
        case "yes":
            return ok("clock", "synchronised, says systemd")
        case "no":
            return warn("clock", "not synchronised, says systemd", _MEND)
    return skip("clock", "nobody here tells whether it is right")


def judge_end(ends_at: str, now: datetime) -> list[Finding]:
    """Return whether the end set in `policy.ends_at` is still to come; nothing where none is set."""
    if not ends_at:
        return []
    if from_rfc3339(ends_at) <= now:
        mend = "set the coming one, or take it out"
        return [fail("ends_at", f"policy.ends_at = {ends_at} has passed: nothing would stop in time", mend)]
    return [ok("ends_at", f"stops in time before {ends_at}")]
