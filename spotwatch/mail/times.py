# SPDX-License-Identifier: Apache-2.0
"""When a Droplet goes, as a mail states it; else what follows from when the mail was written.

Only times with an explicit date and an explicit UTC, GMT, Z or offset are read: other abbreviations are
ambiguous (IST is three zones), so are 11/12/2026 and a time without a day. All results are aware UTC; no
local zone, no clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from typing import Literal

from spotwatch.mail.moments import DATE, TIME, ZONE, moment
from spotwatch.masking import escape
from spotwatch.model import to_rfc3339

WINDOW = timedelta(hours=2)
"""What DigitalOcean aims at between mail and reclaim (tutorial on spot GPU Droplets, September 2026)."""
MARGIN = timedelta(minutes=15)
"""How much earlier a Droplet is taken to go when the mail does not say when."""
FARTHEST_AHEAD = timedelta(hours=48)
FARTHEST_PAST = timedelta(minutes=15)
MAX_TIMES = 200
"""How many times of each form are looked at: a hostile mail has room for thousands."""
# A Date header of another year, forged or of a lost clock, must not become arithmetic beyond the calendar.
_OLDEST_MAIL = timedelta(days=2)

_GLUE = (
    r"(?:T|(?:[\s,]{1,3}|\s?[|:]\s?)"
    r"(?:(?:at|from|between|starting|around|about|approximately|@|-|\u2013|\u2014)\s){0,2}\(?)"
)
_UNTIL = r"\s?(?:and|to|until|till|through|-|\u2013|\u2014)\s?"
_DATE_FIRST = re.compile(
    rf"{DATE('d1')}{_GLUE}{TIME('t1')}(?:\s?{ZONE('z1')})?"
    rf"(?:{_UNTIL}(?:{DATE('d2')}{_GLUE})?{TIME('t2')}\s?{ZONE('z2')})?",
    re.IGNORECASE,
)
_TIME_FIRST = re.compile(
    rf"{TIME('t1')}(?:\s?{ZONE('z1')})?(?:{_UNTIL}{TIME('t2')}\s?{ZONE('z2')})?"
    rf",?\s(?:\(?(?:on|of)\s)?(?:the\s)?{DATE('d1')}",
    re.IGNORECASE,
)

_NUMBERS = {
    "a": 1,
    "an": 1,
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
    "thirty": 30,
    "forty-five": 45,
    "sixty": 60,
    "ninety": 90,
    "half an": 0.5,
}
_NUMBER = rf"(?:[0-9]{{1,4}}(?:\.[0-9])?|{'|'.join(sorted(_NUMBERS, key=len, reverse=True))})"
_SPAN = (
    rf"(?P<n>{_NUMBER})(?P<half>\sand\sa\shalf)?[\s-]?(?P<unit>hours?|hrs?|h|minutes?|mins?)\b(?P<rest>\sand\sa\shalf\b)?"
    rf"(?:,?\s(?:and\s)?(?P<m>{_NUMBER})[\s-]?(?:minutes?|mins?)\b)?"
)
_RELATIVE = re.compile(
    r"\b(?P<lead>(?:in|within|after|approximately|about|around|roughly)\s"
    r"(?:(?:in|within|the|next|about|approximately|around|roughly|just|only|less\sthan|under)\s){0,3})?"
    rf"{_SPAN}(?P<tail>\sfrom\s(?:now|the\s(?:time|date)|receipt|this)|\safter\s(?:this|receiving|receipt))?"
    r"(?!\s(?:ago|earlier|before|prior|notice|advance|of\snotice|or\smore))",
    re.IGNORECASE,
)

# In the words before a time, the last ones deciding.
_LABEL = (
    r"\W{0,4}(?:(?:at|on|by|time|date|is|was|scheduled|estimated|expected)\W{1,4}|(?:time|date)\W{0,4}){0,3}$"
)
_END = re.compile(
    r"\b(?:end|ends|ended|ending|until|till|through|up to|finish\w{0,5}|complet\w{0,5}|restor\w{0,6})"
    rf"{_LABEL}",
    re.IGNORECASE,
)
_WRITTEN = re.compile(
    r"\b(?:sent|issued|received|created|generated|published|posted|launched|dated|last updated|requested"
    rf"|submitted|as of|(?:notice|notification|message|e?mail)\s(?:time|date|of|from|on)){_LABEL}",
    re.IGNORECASE,
)
_NEW = re.compile(
    r"\b(?:to|now|new|correct|corrected|actual|revised|updated|but)[\s,:]{1,3}(?:\w{1,12}[\s,:]{1,3}){0,3}$",
    re.IGNORECASE,
)
_OLD = re.compile(
    r"\b(?:instead of|rather than|previous(?:ly)?|original(?:ly)?|former(?:ly)?|earlier|incorrect(?:ly)?"
    r"|wrong(?:ly)?|erroneous(?:ly)?|mistaken(?:ly)?|from|was|were|not|old)[\s,:]{1,3}(?:\w{1,12}[\s,:]{1,3}){0,4}$",
    re.IGNORECASE,
)
_MOVED_FROM = re.compile(
    r"\b(?:moved|changed|rescheduled|postponed|delayed|shifted|extended|advanced|brought forward|pushed back"
    r"|put back)[\s,:]{1,3}(?:\w{1,12}[\s,:]{1,3}){0,4}$",
    re.IGNORECASE,
)
# "Postponed until" names the new start.
_PUT_OFF = re.compile(
    r"\b(?:delay|postpon|mov|reschedul|extend)(?:e|ed|ing)?\b.{0,60}\b(?:until|till)\W{1,3}$",
    re.IGNORECASE,
)
_KEYWORD = re.compile(
    r"\b(?:start|begin|at|on|by|after|from|between|to|around|about|approximately|time|date|when|deadline|schedul"
    r"|reclaim|reclamation|interrupt|terminat|destroy|evict|preempt|shut|power|taken|take|remov|stop|end)",
    re.IGNORECASE,
)
_DEED = re.compile(
    r"\b(?:reclaim|reclamation|interrupt|terminat|destroy|evict|preempt|shut|power|tak(?:e|en|ing)\sback|taken|remov"
    r"|withdraw|going away|go away|delet|stop)",
    re.IGNORECASE,
)
_BEFORE, _AFTER = 80, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """When a Droplet goes."""

    at: datetime
    """Aware UTC, at most two hours after the mail came."""
    is_stated: bool
    """Whether the mail says so itself."""
    why: str
    """From which words, or what it was derived from; nothing in it is unescaped."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    at: datetime
    words: str
    role: Literal["time", "old"]


def when(
    text: str, *, signed_at: datetime | None, received_at: datetime, is_correction: bool = False
) -> When:
    """Return when a Droplet goes: the earliest plausible time that the text states, or the fall-back.

    Plausible is what lies after the mail was written, at most 48 hours; a time up to 15 minutes before it
    only when there is no other. The fall-back is two hours after the mail was written, less 15 minutes: a
    mail that is late shortens, and never lengthens.

    Args:
        text: normalised.
        signed_at: the mail's Date, aware; None: it has none.
        received_at: aware.
        is_correction: the text also tells the time that no longer holds.
    """
    received_at = received_at.astimezone(UTC)
    issued_at = received_at if signed_at is None else min(signed_at, received_at)
    issued_at = max(issued_at, received_at - _OLDEST_MAIL).astimezone(UTC)
    latest = received_at + WINDOW
    found = _stated(" ".join(text.split()), issued_at, is_correction=is_correction)
    if found is not None and found.at <= latest:
        return When(at=found.at, is_stated=True, why=f"stated: {escape(found.words, limit=80)}")
    if found is not None:
        why = f"two hours after it came: it states {to_rfc3339(found.at)}, which is later"
        return When(at=latest, is_stated=False, why=why)
    source = "its Date" if signed_at is not None and signed_at <= received_at else "its arrival"
    return When(
        at=issued_at + WINDOW - MARGIN,
        is_stated=False,
        why=f"{source} and two hours, less 15 min: it states no time with a date and a zone",
    )


def _stated(text: str, issued_at: datetime, *, is_correction: bool) -> _Candidate | None:
    first, last = issued_at - FARTHEST_PAST, issued_at + FARTHEST_AHEAD
    found = [
        candidate
        for candidate in (
            *_absolute(text, issued_at, is_correction=is_correction),
            *_relative(text, issued_at),
        )
        if first <= candidate.at <= last
    ]
    found = [candidate for candidate in found if candidate.role == "time"] or found
    ahead = [candidate for candidate in found if candidate.at > issued_at]
    return min(ahead or found, key=lambda candidate: candidate.at, default=None)


def _absolute(text: str, issued_at: datetime, *, is_correction: bool) -> Iterator[_Candidate]:
    covered = bytearray(len(text))
    for match in chain(_first(_DATE_FIRST, text), _first(_TIME_FIRST, text)):
        if covered.find(1, *match.span()) >= 0:
            continue
        before = text[max(0, match.start() - _BEFORE) : match.start()]
        is_move = is_correction and match["t2"] is not None and _MOVED_FROM.search(before) is not None
        at = _end_of(match, issued_at) if is_move else _start_of(match, issued_at)
        if at is None:
            continue
        covered[match.start() : match.end()] = bytes([1]) * len(match.group())
        is_end = _END.search(before) and not (is_correction and _PUT_OFF.search(before))
        if is_end or _WRITTEN.search(before):
            continue
        if not _KEYWORD.search(text, max(0, match.start() - _BEFORE), match.end() + _AFTER):
            continue
        is_old = is_correction and not is_move and _OLD.search(before) and not _NEW.search(before)
        yield _Candidate(at, match.group(), "old" if is_old else "time")


def _first(expression: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    return islice(expression.finditer(text), MAX_TIMES)


def _start_of(match: re.Match[str], issued_at: datetime) -> datetime | None:
    zone = match["z1"] or match["z2"]
    if zone is None:
        return None
    start = moment(match["d1"], match["t1"], zone, near=issued_at)
    if match["t2"] is None or re.search("[ap]", match["t1"], re.IGNORECASE):
        return start
    # "1:00 - 3:00 PM": the start is in the afternoon too, unless it would lie after the end.
    half = re.search(r"[ap]\.?m", match["t2"], re.IGNORECASE)
    if half is None:
        return start
    end = _end_of(match, issued_at)
    same_half = moment(match["d1"], f"{match['t1']} {half.group()}", zone, near=issued_at)
    return same_half if same_half is not None and end is not None and same_half < end else start


def _end_of(match: re.Match[str], issued_at: datetime) -> datetime | None:
    date = match.groupdict().get("d2") or match["d1"]
    return moment(date, match["t2"], match["z2"], near=issued_at)


def _relative(text: str, issued_at: datetime) -> Iterator[_Candidate]:
    for match in _first(_RELATIVE, text):
        if not match["lead"] and not match["tail"]:
            continue
        around = text[max(0, match.start() - _BEFORE) : match.end() + _AFTER]
        if not _DEED.search(around):
            continue
        amount = _number(match["n"]) + (0.5 if match["half"] or match["rest"] else 0)
        minutes = amount * 60 if match["unit"].lower().startswith("h") else amount
        minutes += _number(match["m"]) if match["m"] else 0
        if minutes:
            yield _Candidate(issued_at + timedelta(minutes=minutes), match.group().strip(), "time")


def _number(text: str) -> float:
    word = " ".join(text.lower().split())
    return _NUMBERS[word] if word in _NUMBERS else float(word)
