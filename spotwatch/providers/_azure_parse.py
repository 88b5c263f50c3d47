# SPDX-License-Identifier: Apache-2.0
"""What a document of Azure's Scheduled Events means for one machine, as pure functions.

It sends nothing and remembers nothing: which events the last document held is handed in and handed back.
Source unless noted: Microsoft Learn, "Scheduled Events for Linux VMs", article of 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from spotwatch.errors import Malformed
from spotwatch.model import Certainty, Evidence, Kind, Notice

NAME = "azure"
SIGNAL = "scheduled-events"
MAX_EVENTS = 1000
"""More than a document of a whole placement group (100 machines) can hold."""
_TEXT_LENGTH = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meaning:
    kind: Kind
    certainty: Certainty = Certainty.EXACT
    ends_machine: bool = True
    is_final: bool = False
    has_deadline: bool = True


_MEANINGS: Mapping[str, _Meaning] = {
    # Best effort, often less than the 30 s of the guide: nothing to rely on.
    "preempt": _Meaning(kind=Kind.RECLAIM, certainty=Certainty.ESTIMATE),
    "terminate": _Meaning(kind=Kind.RECLAIM, is_final=True),
    "reboot": _Meaning(kind=Kind.RECLAIM),
    "redeploy": _Meaning(kind=Kind.RECLAIM),
    "freeze": _Meaning(kind=Kind.MAINTENANCE, ends_machine=False),
    # Advisory, from api-version 2024-07-09 on; the eviction may never come (Microsoft Learn, "Spot eviction
    # risk notifications").
    "spotrebalancerecommendation": _Meaning(
        kind=Kind.AT_RISK, certainty=Certainty.ESTIMATE, ends_machine=False, has_deadline=False
    ),
}
_UNKNOWN = _Meaning(kind=Kind.MAINTENANCE, certainty=Certainty.ESTIMATE, ends_machine=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An event of the last document that concerns this machine."""

    notice_id: str
    type: str
    spelled: str
    """EventId exactly as the cloud wrote it; empty: it had none."""
    sole_resource: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What one document says about this machine."""

    notices: tuple[Notice, ...] = ()
    known: Mapping[str, Known] = field(default_factory=dict)
    """By event key; to be handed in with the next document."""
    error: Malformed | None = None
    """Set when a part could not be read; the notices count all the same, but absence proves nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    key: str
    spelled: str
    type: str
    has_started: bool
    resources: tuple[str, ...]
    not_before: datetime | None
    text: str
    error: Malformed | None


def parse(document: object, *, me: str | None, known: Mapping[str, Known], seen_at: datetime) -> Parsed:
    """Read one document for the machine called `me`.

    Events are broadcast to all machines of a scale set or availability set; only those that list `me` count.
    While `me` is None, an event that lists a single machine is taken as weak evidence: it may cost a flush,
    never a stop.

    Raises:
        Malformed: it is no such document.
    """
    items = document.get("Events") if isinstance(document, dict) else None
    if not isinstance(items, list):
        raise Malformed(f"{SIGNAL}: expected an object with a list 'Events', got {_text(document)!r}")
    error = None
    if len(items) > MAX_EVENTS:
        error = Malformed(f"{SIGNAL}: {len(items)} events, only the first {MAX_EVENTS} are read")
    mine: list[_Event] = []
    for item in items[:MAX_EVENTS]:
        try:
            event = _event(item, me)
        except Malformed as problem:
            error = error or problem
            continue
        if event is not None:
            error = error or event.error
            mine.append(event)
    ids = _notice_ids(mine, known)
    found: dict[str, Notice] = {}
    for event in mine:
        notice = _notice(event, ids[event.key], is_weak=me is None, seen_at=seen_at)
        found[notice.id] = _sooner(found.get(notice.id), notice)
    return Parsed(
        notices=tuple(found.values()),
        known={
            event.key: Known(
                notice_id=ids[event.key],
                type=event.type.lower(),
                spelled=event.spelled,
                sole_resource=len(event.resources) == 1 and me is not None,
            )
            for event in mine
        },
        error=error,
    )


def _event(item: object, me: str | None) -> _Event | None:
    """Return one event if it concerns us; a time that cannot be read does not lose it."""
    if not isinstance(item, dict):
        raise Malformed(f"{SIGNAL}: expected an event, got {_text(item)!r}")
    listed = item.get("Resources")
    if not isinstance(listed, list) or not listed or not all(isinstance(name, str) for name in listed):
        raise Malformed(f"{SIGNAL}: expected names in 'Resources', got {_text(listed)!r}")
    resources = tuple(name.strip().casefold() for name in listed)
    if (me.casefold() not in resources) if me is not None else len(resources) != 1:
        return None
    kind = item.get("EventType")
    if not isinstance(kind, str) or not kind.strip():
        raise Malformed(f"{SIGNAL}: expected a name in 'EventType', got {_text(kind)!r}")
    kind = kind.strip()
    spelled = item.get("EventId")
    spelled = spelled if isinstance(spelled, str) and spelled.strip() else ""
    not_before, error = _not_before(item.get("NotBefore"))
    status = str(item.get("EventStatus", ""))
    about = [kind, status, *(str(item.get(name) or "") for name in ("EventSource", "Description"))]
    return _Event(
        # Without an id: what does not slide.
        key=_text(spelled.strip().lower() or f"no-id:{kind.lower()}:{me or resources[0]}".casefold()),
        spelled=spelled,
        type=kind,
        has_started=status.lower() == "started",
        resources=resources,
        not_before=not_before,
        text=_text(" ".join(part for part in about if part)),
        error=error,
    )


def _notice_ids(events: list[_Event], known: Mapping[str, Known]) -> dict[str, str]:
    """Return a notice id for each event, stable when the EventId changes with the status.

    Azure's sample keeps one EventId from Scheduled to Started; its mock server gives each state a new one
    (Azure-Samples/scheduled-events-mock-server). So a Started event that is new inherits from one of its type
    that has vanished.
    """
    ids = {event.key: known[event.key].notice_id for event in events if event.key in known}
    vanished = [one for key, one in known.items() if key not in ids]
    for event in events:
        if event.key in ids:
            continue
        heir_of = None
        if event.has_started:
            heir_of = next((one for one in vanished if one.type == event.type.lower()), None)
        if heir_of is None:
            ids[event.key] = f"{NAME}:{event.key}"
        else:
            vanished.remove(heir_of)
            ids[event.key] = heir_of.notice_id
    return ids


def _notice(event: _Event, notice_id: str, *, is_weak: bool, seen_at: datetime) -> Notice:
    meaning = _MEANINGS.get(event.type.lower(), _UNKNOWN)
    return Notice(
        id=notice_id,
        provider=NAME,
        signal=SIGNAL,
        kind=meaning.kind,
        seen_at=seen_at,
        deadline=event.not_before if meaning.has_deadline else None,
        certainty=meaning.certainty,
        ends_machine=meaning.ends_machine,
        is_final=meaning.is_final,
        has_started=event.has_started,
        sole_resource=len(event.resources) == 1 and not is_weak,
        evidence=Evidence.WEAK if is_weak else Evidence.STRONG,
        detail=event.text,
    )


def _sooner(one: Notice | None, other: Notice) -> Notice:
    """Return the sooner of two events with one id; started counts from both."""
    if one is None:
        return other
    far = datetime.max.replace(tzinfo=UTC)
    first = min(one, other, key=lambda notice: notice.deadline or far)
    return replace(first, has_started=one.has_started or other.has_started)


def _not_before(text: object) -> tuple[datetime | None, Malformed | None]:
    """Return NotBefore; empty once an event has started.

    RFC 1123, the day with one or two digits. The weekday is not checked: it is wrong in Azure's own sample.
    """
    if text is None or text == "":
        return None, None
    try:
        moment = parsedate_to_datetime(text if isinstance(text, str) else "")
        # "-0000" is read as naive; the guide knows GMT only.
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC), None
    except (ValueError, TypeError, IndexError, OverflowError):
        return None, Malformed(f"{SIGNAL}: 'NotBefore' {_text(text)!r} is no RFC 1123 time")


def _text(value: Any) -> str:
    return "".join(c if c.isprintable() else " " for c in str(value)[:_TEXT_LENGTH])
