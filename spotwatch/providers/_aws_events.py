# SPDX-License-Identifier: Apache-2.0
"""What EC2's list of scheduled events says: which are in force, when they begin, and what they do to memory.

It does not fetch the list, nor does it look at the history of past events.

Source: Amazon EC2 user guide, "Scheduled events for your instances" (edition of 2023).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from spotwatch.errors import Malformed
from spotwatch.model import Certainty, Kind, Notice
from spotwatch.providers._aws_fields import Parsed, as_json, moment, short, words

SCHEDULED_EVENTS = "scheduled-events"

_OVER = ("completed", "canceled", "cancelled")
_OVER_PREFIXES = tuple(f"[{word}]" for word in _OVER)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# `21 Jan 2019 09:00:43 GMT`; the day comes unpadded too.
_EVENT_TIME = re.compile(r"(\d{1,2}) ([A-Za-z]{3}) (\d{4}) (\d{1,2}):(\d\d):(\d\d) (?:GMT|UTC)")

# Code: does memory end, does the machine come back. A retired instance is stopped when its root is on EBS and
# terminated when it is on the instance store; which of the two cannot be seen here, so the worse one counts.
_EVENT_CODES: Mapping[str, tuple[bool, bool]] = {
    "instance-stop": (True, False),
    "instance-retirement": (True, True),
    "instance-reboot": (True, False),
    "system-reboot": (True, False),
    "system-maintenance": (False, False),
}


def scheduled_events(body: bytes, seen_at: datetime) -> Parsed:
    """Return the events in force; one bad item loses neither the others nor, where it can be told, itself."""
    rows = as_json(body)
    if not isinstance(rows, list):
        raise Malformed(f"{SCHEDULED_EVENTS}: expected a list, got {short(rows)}", body=body)
    notices: dict[str, Notice] = {}
    problems: list[str] = []
    for row in rows:
        if isinstance(row, dict) and _is_over(row):
            continue
        notice = _event(row, seen_at)
        if notice is None:
            problems.append(f"no event in {short(row)}")
            continue
        if notice.deadline is None:
            problems.append(f"NotBefore {short(row.get('NotBefore'))} of {notice.id}")
        notices.setdefault(notice.id, notice)
    problem = None
    if problems:
        problem = Malformed(f"{SCHEDULED_EVENTS}: {'; '.join(problems[:3])}", body=body)
    return Parsed(notices=tuple(notices.values()), problem=problem)


def _is_over(row: Mapping[str, Any]) -> bool:
    description = words(row.get("Description")).lower()
    return words(row.get("State")).lower() in _OVER or description.startswith(_OVER_PREFIXES)


def _event(row: object, seen_at: datetime) -> Notice | None:
    """Return the notice of one scheduled event, without a deadline when its time is unreadable."""
    if not isinstance(row, dict):
        return None
    code, name, start = words(row.get("Code")), words(row.get("EventId")), row.get("NotBefore")
    if not (code or name):
        return None
    deadline = _event_time(start)
    # What is unknown may end the machine.
    ends_machine, is_final = _EVENT_CODES.get(code, (True, False))
    parts = (code or "event without a code", words(row.get("Description")))
    return Notice(
        id=name or f"aws:event:{code}:{short(start)}",
        provider="aws",
        signal=SCHEDULED_EVENTS,
        kind=Kind.MAINTENANCE,
        seen_at=seen_at,
        deadline=deadline,
        certainty=Certainty.EXACT if deadline is not None else Certainty.ESTIMATE,
        ends_machine=ends_machine,
        is_final=is_final,
        detail=": ".join(part for part in parts if part),
    )


def _event_time(value: object) -> datetime | None:
    found = _EVENT_TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return moment(value)
    day, month, year, hour, minute, second = found.groups()
    try:
        number = _MONTHS.index(month.lower()) + 1
        return datetime(int(year), number, int(day), int(hour), int(minute), int(second), tzinfo=UTC)
    except ValueError:
        return None
