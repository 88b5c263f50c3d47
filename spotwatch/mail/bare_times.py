# SPDX-License-Identifier: Apache-2.0
"""Times as they are written otherwise than with a colon and UTC, and what one may mean that has no sure zone.

It does not know which of them is a deadline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import NamedTuple

from spotwatch.mail.moments import DATE, TIME, moment

# Each is rewritten as a form that is read: 20261129T124000Z, 12.40 pm, 13h50 UTC, at 1350Z, noon UTC, 1h50m,
# a minus that is none in ASCII, and an abbreviation that is explained behind it.
_FORMS = (
    (
        (
            r"\b([0-9]{4})([01][0-9])([0-3][0-9])T([0-2][0-9])([0-5][0-9])(?:[0-5][0-9])?"
            r"(Z|[+-][0-9]{2}:?[0-9]{2})"
        ),
        r"\1-\2-\3T\4:\5\6",
    ),
    (r"\b([01]?[0-9]|2[0-3])[.h]([0-5][0-9])(?=\s?(?:[ap]\.?m\b|UTC\b|GMT\b|Z\b))", r"\1:\2"),
    (r"(?<=\bat )([01][0-9]|2[0-3])([0-5][0-9])(?=\s?(?:UTC\b|GMT\b|Z\b))", r"\1:\2"),
    (r"\bnoon(?=\s\(?(?:UTC|GMT)\b)", "12:00"),
    (r"\bmidnight(?=\s\(?(?:UTC|GMT)\b)", "00:00"),
    (r"(?<=:[0-9]{2} )(?:Zulu|Universal Time)\b", "UTC"),
    (r"\b([0-9]{1,2})\s?h(?:ours?)?\s?([0-9]{1,2})\s?m\b", r"\1 hours \2 minutes"),
    ("(?<=[0-9TC])\u2212(?=[0-9])", "-"),
    (r"\b[A-Z]{2,4}T \((?=UTC|GMT|[+-][0-9])", "("),
)
_WRITTEN_OTHERWISE = tuple((re.compile(form), plain) for form, plain in _FORMS)

_HALF_HOUR = 0.5
# Several where the letters stand for several zones. DigitalOcean is in the United States: a time without any
# zone is UTC or one of theirs.
_HOURS: dict[str, tuple[float, ...]] = {
    "": (0, -4, -5, -6, -7, -8),
    "ET": (-5, -4),
    "EST": (-5,),
    "EDT": (-4,),
    "CT": (-6, -5),
    "CST": (-6, 8),
    "CDT": (-5,),
    "MT": (-7, -6),
    "MST": (-7,),
    "MDT": (-6,),
    "PT": (-8, -7),
    "PST": (-8,),
    "PDT": (-7,),
    "BST": (1,),
    "CET": (1,),
    "CEST": (2,),
    "IST": (5 + _HALF_HOUR, 2, 1),
    "JST": (9,),
    "AEST": (10,),
    "AEDT": (11,),
}
_ANY_TIME = re.compile(
    rf"(?:{DATE('d1')}(?:T|[\s,|]{{1,3}})(?:at\s)?)?(?<![+-]){TIME('t1')}(?!\s?\(?(?:UTC|GMT|Z)\b|\s?[+-][0-9])"
    r"(?:\s\(?(?P<zone>[A-Z]{2,4})\b)?",
    re.IGNORECASE,
)


class Reading(NamedTuple):
    """What a time without a sure zone may mean."""

    at: datetime
    words: str
    start: int
    end: int


def plainly(text: str) -> str:
    """Return a text in which times stand as they are read."""
    for form, plain in _WRITTEN_OTHERWISE:
        text = form.sub(plain, text)
    return text


def readings(text: str, *, after: datetime, before: datetime, limit: int) -> Iterator[Reading]:
    """Yield each moment between two that a time without UTC or an offset may mean.

    Args:
        text: on one line.
        after: aware UTC.
        before: aware UTC.
        limit: how many times are looked at.
    """
    for match in islice(_ANY_TIME.finditer(text), limit):
        zone = (match["zone"] or "").upper()
        for hours in _HOURS.get(zone, _HOURS[""]):
            at = moment(match["d1"] or "today", match["t1"], _offset(hours), near=after)
            if at is not None and match["d1"] is None and at <= after:
                at += timedelta(days=1)
            if at is not None and after < at < before:
                yield Reading(at, match.group(), match.start(), match.end())


def _offset(hours: float) -> str:
    minutes = round(abs(hours) * 60)
    return f"{'-' if hours < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"
