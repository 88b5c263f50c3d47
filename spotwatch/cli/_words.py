# SPDX-License-Identifier: Apache-2.0
"""Times and sizes as people read them.

The way back, from text to seconds, is in `_durations`.
"""

from __future__ import annotations

from datetime import datetime

_MINUTE = 60
_HOUR = 3600
_DAY = 86400
_KIB = 1024


def span(seconds: float) -> str:
    """Return `seconds` in the two units that matter: `0.4 s`, `45 s`, `1 min 32 s`, `2 h 5 min`."""
    if seconds < 10:  # noqa: PLR2004 - below that, tenths are worth reading
        return f"{max(seconds, 0):.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    for size, name, part_size, part in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "min"),
        (_MINUTE, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // part_size
            return f"{whole // size} {name}" + (f" {rest} {part}" if rest else "")
    return f"{whole} s"


def ago(moment: datetime, now: datetime) -> str:
    """Return how long ago `moment` was."""
    return f"{span((now - moment).total_seconds())} ago"


def until(moment: datetime, now: datetime) -> str:
    """Return `in 1 min 32 s`, or `12 s ago` for what has passed."""
    seconds = (moment - now).total_seconds()
    return f"in {span(seconds)}" if seconds >= 0 else ago(moment, now)


def size(count: float) -> str:
    """Return a number of bytes: `512 B`, `4.2 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < _KIB:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= _KIB
    return f"{count:.1f} TiB"
