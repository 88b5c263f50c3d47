# SPDX-License-Identifier: Apache-2.0
"""How long from now something happens, as English mails write it: in two hours, within 30 to 45 minutes.

Of a range the earlier end is taken. What happens then, and whether the span means anything, is `times`'
business.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from typing import NamedTuple

_NUMBERS = {
    "a": 1,
    "an": 1,
    "a couple of": 2,
    "a few": 3,
    "one": 1,
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
    "eleven": 11,
    "twelve": 12,
    "fifteen": 15,
    "twenty": 20,
    "twenty-five": 25,
    "thirty": 30,
    "thirty-five": 35,
    "forty": 40,
    "forty-five": 45,
    "fifty": 50,
    "sixty": 60,
    "ninety": 90,
    "half an": 0.5,
    "a quarter of an": 0.25,
    "three quarters of an": 0.75,
}
# By the first letters; months are days by the thirty.
_SECONDS = {"s": 1, "mo": 2592000, "m": 60, "h": 3600, "d": 86400, "w": 604800}

_NUMBER = rf"(?:[0-9]{{1,4}}(?:\.[0-9])?|{'|'.join(sorted(_NUMBERS, key=len, reverse=True))})"
_AGAIN = r"(?:\s\([0-9]{1,4}\))?"
_SPAN = (
    rf"(?P<n>{_NUMBER}){_AGAIN}(?:\s?(?:to|or|-|\u2013)\s?{_NUMBER}{_AGAIN})?(?P<half>\sand\sa\shalf)?[\s-]?"
    r"(?:(?:business|working|calendar)\s)?"
    r"(?P<unit>hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|days?|weeks?|months?)\b(?P<rest>\sand\sa\shalf\b)?"
    rf"(?:,?\s?(?:and\s)?(?P<m>{_NUMBER})[\s-]?(?:minutes?|mins?|m)\b)?"
)
_RELATIVE = re.compile(
    r"(?P<lead>\b(?:in|within|after|approximately|about|around|roughly|remaining:|left:)\s"
    r"(?:(?:in|within|the|next|about|approximately|approx\.?|ca\.?|around|roughly|just|only|less\sthan|under)\s){0,3}"
    r"~?\s?)?"
    rf"(?<!\w){_SPAN}(?:(?P<tail>\sfrom\s(?:now|the\s(?:time|date)|receipt|this)"
    r"|\safter\s(?:this(?:\s(?:notice|notification|e-?mail|message))?|receiving|receipt)|\s(?:left|remaining|until)\b)"
    # What counts from the deed itself is another deed's.
    r"|(?!\s(?:ago|earlier|before|prior|notice|advance|of\snotice|or\smore"
    r"|(?:after|of|following)\s(?!this|receiv|receipt))))",
    re.IGNORECASE,
)
_NOTICE = re.compile(
    rf"\b(?:this\sis|consider\sthis)\s(?:your|the|an?)\s(?P<n>{_NUMBER})[\s-](?P<unit>hours?|minutes?)"
    r"[\s-](?:\w{4,12}\s){0,2}(?:notice|notification|warning)\b",
    re.IGNORECASE,
)
_CLOCK = re.compile(
    r"\bin\s(?P<h>[0-9]{1,2}):(?P<m>[0-5][0-9])(?::[0-5][0-9])?(?=\s(?:hours?|h)\b|\W*(?:$|\s[A-Z]))"
)
_THE_HOUR = re.compile(r"\b(?:in|within)\s(?:the|this)\s(?:next\s|coming\s)?hour\b", re.IGNORECASE)
# Only of the deed itself: what is said to be saved, deleted or billed immediately is another matter.
_AT_ONCE = re.compile(
    r"\b(?<!data\s)(?<!files\s)(?<!disk\s)(?<!contents\s)(?:will|must|is|are|has\sto|have\sto)\s(?:now\s)?(?:be|being)\s"
    r"(?:(?:immediately|momentarily)\s(?:reclaim|interrupt|terminat|evict|preempt|destroy|shut\sdown|taken\sback|powered\soff|stopped)"
    r"|(?:reclaimed|interrupted|terminated|evicted|preempted|destroyed|shut\sdown|taken\sback|powered\soff|stopped)\s"
    r"(?:effective\simmediately|with\simmediate\seffect|immediately|momentarily|within\sminutes|at\sonce|right\snow|right\saway|now\b))",
    re.IGNORECASE,
)
_NEXT = re.compile(
    r"\b(?:next|(?:in|over)\sthe\s(?:coming|next)(?:\sfew)?|later\sthis)\s(?:weeks?|months?|years?|days)\b",
    re.IGNORECASE,
)


class Span(NamedTuple):
    """A span of time, and where it stands."""

    after: timedelta
    start: int
    end: int
    words: str


def spans(text: str, limit: int) -> Iterator[Span]:
    """Yield the spans from now that a text states, at most `limit` of each form.

    Args:
        text: one blank between words, no line ends.
        limit: how many of each form are looked at.
    """
    for match in islice(_RELATIVE.finditer(text), limit):
        after = _length(match)
        if (match["lead"] or match["tail"]) and after:
            yield _span(match, after)
    for match in islice(_THE_HOUR.finditer(text), limit):
        yield _span(match, timedelta(hours=1))
    for match in islice(_AT_ONCE.finditer(text), limit):
        yield _span(match, timedelta())
    for match in islice(_NOTICE.finditer(text), limit):
        seconds = _number(match["n"]) * _SECONDS[match["unit"][0].lower()]
        yield _span(match, timedelta(seconds=seconds))
    for match in islice(_CLOCK.finditer(text), limit):
        yield _span(match, timedelta(hours=int(match["h"]), minutes=int(match["m"])))


def far_spans(text: str, limit: int) -> Iterator[Span]:
    """Yield what is weeks or days ahead and is not counted: `next month`, `in the coming days`."""
    return (_span(match, timedelta(days=7)) for match in islice(_NEXT.finditer(text), limit))


def _span(match: re.Match[str], after: timedelta) -> Span:
    return Span(after, match.start(), match.end(), match.group().strip())


def _length(match: re.Match[str]) -> timedelta:
    amount = _number(match["n"]) + (0.5 if match["half"] or match["rest"] else 0)
    unit = match["unit"].lower()
    seconds = amount * (_SECONDS["mo"] if unit.startswith("mo") else _SECONDS[unit[0]])
    return timedelta(seconds=seconds, minutes=_number(match["m"]) if match["m"] else 0)


def _number(text: str) -> float:
    word = " ".join(text.lower().split())
    return _NUMBERS[word] if word in _NUMBERS else float(word)
