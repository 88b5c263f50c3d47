# SPDX-License-Identifier: Apache-2.0
"""One date, one time and one zone as English mails write them, and the moment that they name.

Whether that moment means anything is `times`' business. Nothing is guessed but a missing year.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, timezone

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\.?"
)
_WEEKDAY = r"(?:(?:mon|tue|tues|wed|wednes|thu|thur|thurs|fri|sat|satur|sun)(?:day)?,?\s)?"
_WEEKDAY_ALONE = r"(?:mon|tues|wednes|thurs|fri|satur|sun)day"
_DAY = r"[0-9]{1,2}(?:st|nd|rd|th)?"
_YEAR = r"[0-9]{4}(?![0-9:])"

_ISO_DATE = re.compile(r"([0-9]{4})[-/.]([0-9]{2})[-/.]([0-9]{2})")
_NUMBERS_DATE = re.compile(r"([0-9]{1,2})([/.])([0-9]{1,2})[/.]([0-9]{4})")
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_OF_MONTH = re.compile(r"(?<![0-9])([0-9]{1,2})(?:st|nd|rd|th)?(?![0-9])", re.IGNORECASE)
_MONTH_NAME = re.compile("|".join(_MONTHS), re.IGNORECASE)
_FOUR_DIGITS = re.compile(r"(?<![0-9])[0-9]{4}(?![0-9])")
_TIME = re.compile(
    r"([0-9]{1,2})(?::([0-9]{2}))?(?::([0-9]{2})(?:\.([0-9]{1,6})[0-9]{0,3})?)?(?:\s?([ap])\.?m\.?)?",
    re.IGNORECASE,
)
_OFFSET = re.compile(r"([+-])([0-9]{1,2}):?([0-9]{2})?")
_NOON = 12
_WIDEST_OFFSET = timedelta(hours=14)


def DATE(group: str) -> str:  # noqa: N802 - it stands for a piece of an expression
    """Return an expression for a date: 2026-11-29, 29-Nov-2026, [Sunday,] November 29th[, 2026], Sunday."""
    return (
        rf"(?P<{group}>(?<![\w/.-])(?:[0-9]{{4}}[-/.][0-9]{{2}}[-/.][0-9]{{2}}"
        rf"|[0-9]{{1,2}}[/.][0-9]{{1,2}}[/.][0-9]{{4}}|[0-9]{{1,2}}-{_MONTH}-[0-9]{{4}}|{_MONTH}-[0-9]{{1,2}}-[0-9]{{4}}"
        rf"|{_WEEKDAY}{_MONTH}\s{_DAY}(?:,?\s{_YEAR})?|{_WEEKDAY}{_DAY}(?:\sof)?\s{_MONTH}(?:,?\s{_YEAR})?"
        rf"|today|tomorrow|{_WEEKDAY_ALONE})(?![0-9/-]))"
    )


def TIME(group: str) -> str:  # noqa: N802 - likewise
    """Return an expression for a time of day: 4:00, 01:30:00, 2 PM, 2:30 p.m."""
    return (
        rf"(?P<{group}>(?:(?<![\w:.])|(?<=[0-9]T))[0-9]{{1,2}}"
        r"(?::[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?(?![0-9])(?:\s?[ap]\.?m\b\.?)?|\s?[ap]\.?m\b\.?))"
    )


def ZONE(group: str) -> str:  # noqa: N802 - likewise
    """Return an expression for an explicit zone: UTC, (UTC), GMT, Z, UTC+2, +02:00; no other abbreviation.

    An offset with minus must not be the second half of `09:00-11:00 UTC`.
    """
    offset = r"(?:\s?[+-](?:0?[0-9]|1[0-4])(?::?[0-5][0-9])?(?![0-9:]|\s?(?:UTC|GMT|Z)\b))?"
    named = rf"(?:Coordinated\sUniversal\sTime|Greenwich\sMean\sTime|(?:UTC|GMT|Z)(?!\w){offset}(?!\+[0-9]))"
    ahead, behind = r"\+[0-9]{2}:?[0-9]{2}(?![0-9])", r"-[0-9]{2}:?[0-9]{2}(?![0-9:]|\s?\(?(?:UTC|GMT|Z)\b)"
    return rf"\(?(?P<{group}>{named}|{ahead}|{behind})\)?"


def moment(on: str, at: str, zone: str, *, near: datetime) -> datetime | None:
    """Return the moment named, aware UTC; None: there is none, as 30 February, 24:00 or second 60.

    Args:
        on: what `DATE` has matched.
        at: what `TIME` has matched.
        zone: what `ZONE` has matched.
        near: aware UTC; a missing year is the one that brings the moment nearest, and `today` is its day.
    """
    offset, clock = _offset(zone), _time(at)
    if offset is None or clock is None:
        return None
    here = timezone(offset)
    try:
        days = _days(on, near.astimezone(here).date())
        moments = [datetime.combine(day, clock, here).astimezone(UTC) for day in days]
    except (ValueError, OverflowError):
        return None
    return min(moments, key=lambda one: abs(one - near), default=None)


def next_moment(at: str, zone: str, *, after: datetime) -> datetime | None:
    """Return the first moment from `after` on that is this time of day; None: there is no such time.

    Args:
        at: what `TIME` has matched.
        zone: what `ZONE` has matched.
        after: aware UTC.
    """
    days = (after + timedelta(days=days) for days in (-1, 0, 1, 2))
    moments = (moment("today", at, zone, near=day) for day in days)
    return min((one for one in moments if one is not None and one >= after), default=None)


def _days(on: str, today: date) -> list[date]:
    word = on.lower()
    if word in ("today", "tomorrow"):
        return [today + timedelta(days=word == "tomorrow")]
    if word.isalpha() and word[:3] in _WEEKDAYS:
        return [today + timedelta(days=(_WEEKDAYS.index(word[:3]) - today.weekday()) % 7)]
    numbers = _NUMBERS_DATE.fullmatch(on)
    if numbers is not None:
        return _days_of_numbers(
            int(numbers[1]), int(numbers[3]), int(numbers[4]), is_dotted=numbers[2] == "."
        )
    iso = _ISO_DATE.fullmatch(on)
    if iso is not None:
        return [date(*(int(part) for part in iso.groups()))]
    return _days_of_month(on, today)


def _days_of_month(on: str, today: date) -> list[date]:
    name, day = _MONTH_NAME.search(on, _end_of_weekday(on)), _DAY_OF_MONTH.search(on)
    if name is None or day is None:
        return []
    month, year = _MONTHS.index(name.group().lower()) + 1, _FOUR_DIGITS.search(on)
    if year is not None:
        return [date(int(year.group()), month, int(day[1]))]
    days = []
    for one in (today.year - 1, today.year, today.year + 1):
        try:
            days.append(date(one, month, int(day[1])))
        except ValueError:
            continue
    return days


def _days_of_numbers(one: int, two: int, year: int, *, is_dotted: bool) -> list[date]:
    """Return the days that `one/two/year` may be: the month first or second, with full stops second."""
    days = []
    for month, day in ((two, one),) if is_dotted else ((one, two), (two, one)):
        try:
            days.append(date(year, month, day))
        except ValueError:
            continue
    return days


def _end_of_weekday(on: str) -> int:
    weekday = re.match(_WEEKDAY, on, re.IGNORECASE)
    return 0 if weekday is None else weekday.end()


def _time(at: str) -> time | None:
    parts = _TIME.fullmatch(at)
    if parts is None:
        return None
    hour, half = int(parts[1]), (parts[5] or "").lower()
    if half:
        if not 1 <= hour <= _NOON:
            return None
        hour = hour % _NOON + (_NOON if half == "p" else 0)
    try:
        return time(hour, int(parts[2] or 0), int(parts[3] or 0), int((parts[4] or "0").ljust(6, "0")))
    except ValueError:
        return None


def _offset(zone: str) -> timedelta | None:
    found = _OFFSET.search(zone)
    if found is None:
        return timedelta()
    offset = timedelta(hours=int(found[2]), minutes=int(found[3] or 0))
    if offset > _WIDEST_OFFSET:
        return None
    return -offset if found[1] == "-" else offset
