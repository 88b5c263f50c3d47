# SPDX-License-Identifier: Apache-2.0
"""What the values of Google's three metadata keys mean, as pure functions.

It sends nothing and remembers nothing: when a value was first seen is the caller's to know, because a
deadline counted from "now" would slide with every poll.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from spotwatch.errors import Malformed
from spotwatch.model import Certainty, Evidence, Kind, Notice, from_rfc3339

NAME = "gcp"
PREEMPTED = "preempted"
MAINTENANCE_EVENT = "maintenance-event"
UPCOMING_MAINTENANCE = "upcoming-maintenance"

# From ACPI G2 "soft off" to G3 "mechanical off" on a Spot VM (Compute Engine API v1, `skipGuestOsShutdown`,
# revision 20261106).
SOFT_OFF_SECONDS = 30.0

# Compute Engine, "Getting live migration notices"; SHUTDOWN_ is what Google's older samples were written for.
_MAINTENANCE_ENDS_MACHINE: Mapping[str, bool] = {
    "MIGRATE_ON_HOST_MAINTENANCE": False,
    "TERMINATE_ON_HOST_MAINTENANCE": True,
    "SHUTDOWN_ON_HOST_MAINTENANCE": True,
}
# The documented text of an idle key; any other error is no proof that nothing is planned.
_NO_NOTIFICATIONS = "no notifications"
_DETAIL_LENGTH = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one value says: a notice, nothing, or something that could be read by half only."""

    notice: Notice | None = None
    error: Malformed | None = None
    """Set beside a notice when the value announces something whose time cannot be read."""


def parse_preempted(text: str, seen_at: datetime, *, notice_seconds: float) -> Reading:
    """Read `instance/preempted`.

    Google gives no time, so the deadline is counted from `seen_at`: the configured notice, then 30 s from
    soft off to power off. Spot VMs may be stopped or deleted; the key does not say which.

    Raises:
        Malformed: it is neither TRUE nor FALSE.
    """
    value = text.strip()
    if value == "FALSE":
        return Reading()
    if value != "TRUE":
        raise _unknown(PREEMPTED, value, "TRUE or FALSE")
    window = notice_seconds + SOFT_OFF_SECONDS
    return Reading(
        notice=Notice(
            id=f"{NAME}:{PREEMPTED}",
            provider=NAME,
            signal=PREEMPTED,
            kind=Kind.RECLAIM,
            seen_at=seen_at,
            deadline=seen_at + timedelta(seconds=window),
            certainty=Certainty.ESTIMATE,
            window_seconds=window,
            detail=f"preempted; about {window:g} s until power off",
        )
    )


def parse_maintenance_event(text: str, seen_at: datetime, *, notice_seconds: float) -> Reading:
    """Read `instance/maintenance-event`; `notice_seconds` is how long before a termination it is set.

    Raises:
        Malformed: it is none of the documented values.
    """
    value = text.strip()
    if value == "NONE":
        return Reading()
    ends_machine = _MAINTENANCE_ENDS_MACHINE.get(value)
    if ends_machine is None:
        raise _unknown(MAINTENANCE_EVENT, value, f"NONE, {', '.join(_MAINTENANCE_ENDS_MACHINE)}")
    return Reading(
        notice=Notice(
            id=f"{NAME}:{MAINTENANCE_EVENT}",
            provider=NAME,
            signal=MAINTENANCE_EVENT,
            kind=Kind.MAINTENANCE,
            seen_at=seen_at,
            deadline=seen_at + timedelta(seconds=notice_seconds) if ends_machine else None,
            certainty=Certainty.TARGET if ends_machine else Certainty.ESTIMATE,
            window_seconds=notice_seconds if ends_machine else None,
            ends_machine=ends_machine,
            detail=value,
        )
    )


def parse_upcoming_maintenance(text: str, seen_at: datetime) -> Reading:
    """Read `instance/upcoming-maintenance?alt=json`.

    There are three ways of saying "nothing": NONE, `{}` and `{"error": "no notifications …"}` (Compute
    Engine, "Monitor and plan for a host maintenance event"). The guide writes snake_case, the API camelCase.
    The id is constant: one maintenance is announced at a time, and its window may slide.

    Raises:
        Malformed: it is no JSON object, or one that announces nothing known.
    """
    value = text.strip()
    if value.strip('"') == "NONE":
        return Reading()
    fields = _fields(value)
    if not fields or str(fields.get("error", "")).startswith(_NO_NOTIFICATIONS):
        return Reading()
    status = str(fields.get("maintenancestatus", ""))
    start = fields.get("windowstarttime", fields.get("starttime"))
    if not status and start is None:
        raise _unknown(UPCOMING_MAINTENANCE, value, "maintenance_status or window_start_time")
    deadline, error = _time(start, value)
    return Reading(
        notice=Notice(
            id=f"{NAME}:{UPCOMING_MAINTENANCE}",
            provider=NAME,
            signal=UPCOMING_MAINTENANCE,
            kind=Kind.MAINTENANCE,
            seen_at=seen_at,
            deadline=deadline,
            certainty=Certainty.EXACT if deadline else Certainty.ESTIMATE,
            has_started=status.upper() == "ONGOING",
            # Announced up to weeks ahead: without its time it may cost a flush, never a stop.
            evidence=Evidence.STRONG if deadline else Evidence.WEAK,
            detail=_printable(f"{fields.get('type', '')} maintenance {status}".strip()),
        ),
        error=error,
    )


def _fields(value: str) -> dict[str, Any]:
    """Return the fields of the document, their names free of case and underscores."""
    try:
        document = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise _unknown(UPCOMING_MAINTENANCE, value, "JSON") from error
    fields = _normalised(document, value)
    # The guide's own sample wraps the fields in one more object, "Upcoming maintenance".
    inner = fields.get("upcomingmaintenance")
    return fields if inner is None else _normalised(inner, value)


def _normalised(document: object, value: str) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise _unknown(UPCOMING_MAINTENANCE, value, "a JSON object")
    return {str(k).replace("_", "").replace(" ", "").lower(): v for k, v in document.items()}


def _time(start: object, value: str) -> tuple[datetime | None, Malformed | None]:
    try:
        return from_rfc3339(str(start)), None
    except (ValueError, OverflowError):
        return None, Malformed(
            f"{UPCOMING_MAINTENANCE}: window start {_printable(str(start))!r} is no RFC 3339 time",
            body=value.encode(),
        )


def _unknown(signal: str, value: str, wanted: str) -> Malformed:
    return Malformed(f"{signal}: expected {wanted}, got {_printable(value)!r}", body=value.encode())


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text[:_DETAIL_LENGTH])
