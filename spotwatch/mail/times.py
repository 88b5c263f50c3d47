# SPDX-License-Identifier: Apache-2.0
"""When a Droplet goes, as a mail states it; else what follows from when the mail was written.

Only times with an explicit UTC, GMT, Z or offset are read: other abbreviations are ambiguous (IST is three
zones). One without a day is the next such time, if that is within the two hours; of 11/12/2026 the reading
nearest to the mail counts. All results are aware UTC; no local zone, no clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from typing import Literal

from spotwatch.mail.bare_times import Reading, plainly, readings
from spotwatch.mail.deeds import (
    BEGINS,
    DEED,
    END,
    KEPT,
    KEYWORD,
    MOVED_FROM,
    NEW,
    OLD,
    PERIOD_ENDS,
    PUT_OFF,
    WRITTEN,
)
from spotwatch.mail.moments import DATE, TIME, ZONE, moment, next_moment
from spotwatch.mail.spans import far_spans, spans
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
MAX_CHARACTERS = 32 * 1024
"""How much of a text is looked at for times: a table of 500 Droplets is 30,000 characters."""
# A Date header of another year, forged or of a lost clock, must not become arithmetic beyond the calendar.
_OLDEST_MAIL = timedelta(days=2)

_GLUE = (
    r"(?:T|(?:[\s,]{1,3}|\s?[|:]\s?)(?:(?:start\s|reclaim\s)?time(?:\s\(?(?:UTC|GMT)\)?)?\s?[|:]\s?)?"
    r"(?:(?:at|from|between|starting|around|about|approximately|@|-|\u2013|\u2014)\s){0,2}\(?)"
)
_UNTIL = r"\s?(?:and|to|until|till|through|-|\u2013|\u2014)\s?"
_THEN_ZONE = r"(?:\s?(?:h(?:rs?|ours?)?\b)?,?\s?(?:\||[-\u2013](?=\s(?:UTC|GMT)))?\s?\[?"
_DATE_FIRST = re.compile(
    rf"{DATE('d1')}{_GLUE}{TIME('t1')}{_THEN_ZONE}{ZONE('z1')})?"
    rf"(?:{_UNTIL}(?:{DATE('d2')}{_GLUE})?{TIME('t2')}\s?{ZONE('z2')})?",
    re.IGNORECASE,
)
_TIME_FIRST = re.compile(
    rf"{TIME('t1')}{_THEN_ZONE}{ZONE('z1')})?(?:{_UNTIL}{TIME('t2')}\s?{ZONE('z2')})?"
    rf",?\s(?:\(?(?:on|of)\s)?(?:the\s)?{DATE('d1')}",
    re.IGNORECASE,
)
_NO_DATE = re.compile(
    rf"{TIME('t1')}{_THEN_ZONE}{ZONE('z1')})?(?:{_UNTIL}{TIME('t2')}\s?{ZONE('z2')})?", re.IGNORECASE
)
_ONLY_DATE = re.compile(DATE("d1"), re.IGNORECASE)

# The zone in the head of a column, before the time: `Start (UTC): 2026-11-29 13:30`.
_ZONE_BEFORE = re.compile(
    r"(?:\((?:in\s)?(?:UTC|GMT)\)|\btimes?\s(?:in\s)?(?:UTC|GMT)|\b(?:UTC|GMT)(?=\s?[:|]))\s?[:|=-]?\s?$",
    re.IGNORECASE,
)
_ALL_IN_UTC = re.compile(
    r"\btimes\s(?:(?:are|is|shown|given|listed|stated|below|in\sthis\s\w{4,12})\s){0,3}(?:in\s)?(?:UTC|GMT)\b",
    re.IGNORECASE,
)
_HEAD_IN_UTC = re.compile(
    r"\btime\s?zone\W{1,3}(?:UTC|GMT)\b|\b(?:times?|start|end|at|when|deadline|date)\s\(?(?:in\s)?(?:UTC|GMT)\b"
    r"|\((?:all\s)?(?:times?\s)?(?:in\s)?(?:UTC|GMT)\)|\b(?:UTC|GMT)\s(?:time|date)\b",
    re.IGNORECASE,
)
_ANOTHER_ZONE = re.compile(
    r"\b[0-9]{1,2}(?::[0-9]{2}){0,2}\s?(?:[ap]\.?m\.?)?\s?\(?(?:[A-Z]{2,3}[SD]?T|[ECMP]T)\b"
    r"|[0-9]\s?[+-][0-9]{2}:?[0-9]{2}\b(?<!-[0-9]{2}-[0-9]{2})"
)
_UTC = re.compile(r"\b(?:UTC|GMT)\b", re.IGNORECASE)
_OTHER_ZONE = re.compile(r"\s?\(?(?:[A-Z]{1,4}T\b|[+-][0-9]|[A-Z]?[a-z]{3,9}\s[Tt]ime\b|local\b)")

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
    is_far: bool = False
    """Whether the only time that it states for something like a reclaim is more than two days ahead."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    at: datetime
    words: str
    role: Literal["time", "old", "far"]


def when(
    text: str,
    *,
    signed_at: datetime | None,
    received_at: datetime,
    is_correction: bool = False,
    first: str = "",
    zone: str | None = None,
) -> When:
    """Return when a Droplet goes: the earliest plausible time that the text states, or the fall-back.

    Plausible is what lies after the mail was written, at most 48 hours; a time up to 15 minutes before it
    only when there is no other. The fall-back is two hours after the mail was written, less 15 minutes: a
    mail that is late shortens, and never lengthens. A time beside the deed without a sure zone, as `12:40` or
    `8:20 AM ET`, shortens it to the earliest moment that it may mean: too early costs minutes of work, too
    late all that was done since the last save. It is not taken for stated, and the mail is kept for people to
    look at.

    Args:
        text: normalised.
        signed_at: the mail's Date, aware; None: it has none.
        received_at: aware.
        is_correction: the text also tells the time that no longer holds.
        first: what of the text says that the Droplet goes: a time in it counts before those in the rest.
        zone: what the mail says elsewhere that its times are in; None: only `text` may say so.
    """
    received_at = received_at.astimezone(UTC)
    issued_at = received_at if signed_at is None else min(signed_at, received_at)
    issued_at = max(issued_at, received_at - _OLDEST_MAIL).astimezone(UTC)
    latest = received_at + WINDOW
    default = zone or zone_of_all(text)
    found = _stated(_flat(first), issued_at, is_correction=is_correction, default=default)
    if found is None or found.role != "time":
        found = _stated(_flat(text), issued_at, is_correction=is_correction, default=default) or found
    if found is not None and found.role == "far":
        said = escape(found.words, limit=80)
        why = f"{_source(signed_at, received_at)}: it states only what is days ahead, {said}"
        return When(at=issued_at + WINDOW - MARGIN, is_stated=False, why=why, is_far=True)
    if found is not None and found.at <= latest:
        return When(at=found.at, is_stated=True, why=f"stated: {escape(found.words, limit=80)}")
    if found is not None:
        why = f"two hours after it came: it states {to_rfc3339(found.at)}, which is later"
        return When(at=latest, is_stated=False, why=why)
    fallback = issued_at + WINDOW - MARGIN
    source = _source(signed_at, received_at)
    unsure = _unsure(_flat(f"{first}\n{text}"), issued_at, fallback)
    if unsure is not None:
        why = f"{source}, or earlier as {escape(unsure.words, limit=80)}, which has no sure zone, may mean"
        return When(at=unsure.at, is_stated=False, why=why)
    return When(at=fallback, is_stated=False, why=f"{source}: it states no time with a zone")


def _unsure(text: str, after: datetime, before: datetime) -> Reading | None:
    """Return the earliest that a time beside the deed without a known zone may mean; None: there is none."""
    found = (
        one
        for one in readings(text, after=after, before=before, limit=MAX_TIMES)
        if DEED.search(text[max(0, one.start - _BEFORE) : one.start])
        and not END.search(text[max(0, one.start - _BEFORE) : one.start])
        and not WRITTEN.search(text[max(0, one.start - _BEFORE) : one.start])
    )
    return min(found, key=lambda one: one.at, default=None)


def _source(signed_at: datetime | None, received_at: datetime) -> str:
    source = "its Date" if signed_at is not None and signed_at <= received_at else "its arrival"
    return f"{source} and two hours, less 15 min"


def _flat(text: str) -> str:
    """Return a text on one line, with its times as they are read."""
    return plainly(" ".join(text[:MAX_CHARACTERS].split()))


def zone_of_all(text: str) -> str | None:
    """Return UTC where the mail says so of its times, and of no other zone; None: it does not."""
    said = _ALL_IN_UTC.search(text) or (_HEAD_IN_UTC.search(text) and not _ANOTHER_ZONE.search(text))
    return "UTC" if said else None


def _stated(text: str, issued_at: datetime, *, is_correction: bool, default: str | None) -> _Candidate | None:
    first, last = issued_at - FARTHEST_PAST, issued_at + FARTHEST_AHEAD
    every = [
        *_absolute(text, issued_at, is_correction=is_correction, default=default),
        *_relative(text, issued_at),
    ]
    found = [candidate for candidate in every if first <= candidate.at <= last and candidate.role != "far"]
    found = [candidate for candidate in found if candidate.role == "time"] or found
    ahead = [candidate for candidate in found if candidate.at > issued_at]
    if found:
        return min(ahead or found, key=lambda candidate: candidate.at)
    return next((candidate for candidate in every if candidate.role == "far" and candidate.at >= last), None)


def _absolute(
    text: str, issued_at: datetime, *, is_correction: bool, default: str | None
) -> Iterator[_Candidate]:
    read, seen = bytearray(len(text)), bytearray(len(text))
    for match in chain(_first(_DATE_FIRST, text), _first(_TIME_FIRST, text), _first(_NO_DATE, text)):
        is_dated = match.re is not _NO_DATE
        if (read if is_dated else seen).find(1, *match.span()) >= 0:
            continue
        before = text[max(0, match.start() - _BEFORE) : match.start()]
        after = text[match.end() : match.end() + _AFTER]
        is_move = is_correction and match["t2"] is not None and MOVED_FROM.search(before) is not None
        zone = _zone(match, before, after, default)
        place = _Place(match, zone, issued_at)
        at = place.end() if is_move else place.start()
        _mark(seen, match)
        if at is None:
            continue
        _mark(read, match)
        is_old = is_correction and not is_move and OLD.search(before) and not NEW.search(before)
        if WRITTEN.search(before):
            continue
        around = f"{before}{match.group()}{after}"
        if DEED.search(around) and not KEPT.search(before):
            yield _Candidate(at, match.group(), "far")
        if _is_end(before, is_correction=is_correction):
            continue
        if not is_dated and not (DEED.search(around) or BEGINS.search(before)):
            continue
        if KEYWORD.search(around):
            yield _Candidate(at, match.group(), "old" if is_old else "time")
    yield from _days(text, seen, issued_at)


def _days(text: str, seen: bytearray, issued_at: datetime) -> Iterator[_Candidate]:
    """Yield the days without a time of day: none can be a deadline, but each can say that it is far."""
    for match in _first(_ONLY_DATE, text):
        before = text[max(0, match.start() - _BEFORE) : match.start()]
        at = moment(match["d1"], "0:00", "UTC", near=issued_at)
        if (
            at is not None
            and seen.find(1, *match.span()) < 0
            and not KEPT.search(before)
            and not WRITTEN.search(before)
            and DEED.search(f"{before}{text[match.end() : match.end() + _AFTER]}")
        ):
            yield _Candidate(at, match.group(), "far")


def _mark(where: bytearray, match: re.Match[str]) -> None:
    where[match.start() : match.end()] = bytes([1]) * len(match.group())


def _is_end(before: str, *, is_correction: bool) -> bool:
    if END.search(before) is None or PERIOD_ENDS.search(before):
        return False
    return not (is_correction and PUT_OFF.search(before))


def _first(expression: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    return islice(expression.finditer(text), MAX_TIMES)


def _zone(match: re.Match[str], before: str, after: str, default: str | None) -> str | None:
    """Return the zone of a time: behind it, in the head of its column, or the one of the whole mail."""
    zone: str | None = match["z1"] or match["z2"]
    if zone is None and not _OTHER_ZONE.match(after):
        return "UTC" if _ZONE_BEFORE.search(before) or _UTC.search(match.group()) else default
    return zone


@dataclass(frozen=True, slots=True)
class _Place:
    """A time of day that was found, on the day that it was found with, else the next such one."""

    match: re.Match[str]
    zone: str | None
    issued_at: datetime

    def start(self) -> datetime | None:
        match = self.match
        start = self._at("d1", "t1")
        if start is not None and self._ends_on_its_day():
            start -= timedelta(days=1)
        if match["t2"] is None or re.search("[ap]", match["t1"], re.IGNORECASE):
            return start
        # "1:00 - 3:00 PM": the start is in the afternoon too, unless it would lie after the end.
        half = re.search(r"[ap]\.?m", match["t2"], re.IGNORECASE)
        if half is None:
            return start
        end, same_half = self.end(), self._of("d1", f"{match['t1']} {half.group()}")
        return same_half if same_half is not None and end is not None and same_half < end else start

    def _ends_on_its_day(self) -> bool:
        """Tell whether a window runs over midnight, and the day behind it is that of its end."""
        if (
            self.match.re is not _TIME_FIRST
            or self.match["t2"] is None
            or "m" in self.match.group("t1", "t2")
        ):
            return False
        start, end = self._at("d1", "t1"), self._at("d1", "t2")
        return start is not None and end is not None and start > end

    def end(self) -> datetime | None:
        return self._at("d2" if self.match.groupdict().get("d2") else "d1", "t2")

    def _at(self, day: str, time: str) -> datetime | None:
        return self._of(day, self.match[time])

    def _of(self, day: str, time: str) -> datetime | None:
        if self.zone is None:
            return None
        if self.match.re is not _NO_DATE:
            return moment(self.match[day], time, self.zone, near=self.issued_at)
        at = next_moment(time, self.zone, after=self.issued_at - FARTHEST_PAST)
        return at if at is not None and at <= self.issued_at + WINDOW + MARGIN else None


def _relative(text: str, issued_at: datetime) -> Iterator[_Candidate]:
    for span in chain(spans(text, MAX_TIMES), far_spans(text, MAX_TIMES)):
        if DEED.search(text[max(0, span.start - _BEFORE) : span.end + _AFTER]):
            is_far = span.after >= FARTHEST_AHEAD
            yield _Candidate(issued_at + span.after, span.words, "far" if is_far else "time")
