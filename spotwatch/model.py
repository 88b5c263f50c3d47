# SPDX-License-Identifier: Apache-2.0
"""The words of spotwatch as types: what a cloud says, what is to be done, what has happened.

Facts (`Notice`, `Answer`, `Step`, `Event`) never change; progress lives in the ledger. No behaviour beyond
turning a fact into JSON and back. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from spotwatch.errors import ProviderError

JSON = str | int | float | bool | None | list[Any] | dict[str, Any]


class Kind(StrEnum):
    """What a notice is about."""

    RECLAIM = "reclaim"
    """The machine is taken away or shut down."""
    HIBERNATE = "hibernate"
    """The machine is frozen with its memory kept; training goes on afterwards."""
    AT_RISK = "at_risk"
    """The cloud thinks a reclaim likely; it may never come."""
    MAINTENANCE = "maintenance"
    """The cloud will work on the host; `Notice.ends_machine` tells whether memory survives."""


class Certainty(StrEnum):
    """What a deadline is worth."""

    EXACT = "exact"
    """A time one can rely on, "not before" included."""
    TARGET = "target"
    """What the cloud aims at but does not promise (DigitalOcean's two hours)."""
    ESTIMATE = "estimate"
    """Derived from a documented window or a best-effort promise: act at once."""


class Evidence(StrEnum):
    """How well a notice is proven. Weak evidence flushes, strong evidence stops."""

    STRONG = "strong"
    WEAK = "weak"


class Do(StrEnum):
    """What the trainer is told."""

    FLUSH = "flush"
    """Save and go on."""
    STOP = "stop"
    """Save and exit."""
    NONE = "none"
    """Nothing is in force any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What a source says about this machine, at one moment."""

    id: str
    """Stable over polls and restarts: the cloud's own id, or one derived from what does not slide."""
    provider: str
    signal: str
    """Which of the provider's signals said it, for example `instance-action`; withdrawn by that one only."""
    kind: Kind
    seen_at: datetime
    deadline: datetime | None = None
    """When the machine goes, aware UTC; None: the cloud gives no time."""
    certainty: Certainty = Certainty.EXACT
    window_seconds: float | None = None
    """The longest notice that the cloud documents; a deadline farther from first sight is a wrong clock."""
    ends_machine: bool = True
    """Memory does not survive: terminate, stop, reboot, redeploy. False: freeze, live migration."""
    is_final: bool = False
    """The machine does not come back, its disks are gone too (terminate, as against stop)."""
    has_started: bool = False
    """The event is under way; when it vanishes it has passed, it was not withdrawn."""
    sole_resource: bool = False
    """The event concerns this machine alone, so that approving it harms no neighbour."""
    issued_at: datetime | None = None
    """When the cloud says it gave the notice; None: it does not say."""
    evidence: Evidence = Evidence.STRONG
    detail: str = ""
    """Short, for people; never parsed."""
    drill: bool = False
    do: Do | None = None
    """What a hand-made notice asks for (`notices/*.json`); None: the policy decides."""

    def to_json(self) -> dict[str, JSON]:
        """Return this notice as JSON types; times as RFC 3339 UTC."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Notice:
        """Return the notice that `to_json` wrote; unknown keys of a later version are ignored.

        Raises:
            KeyError, ValueError, TypeError: a field is missing or has a wrong form.
        """
        known = {f.name for f in fields(cls)}
        kept = {k: v for k, v in row.items() if k in known}
        for name in ("seen_at", "deadline", "issued_at"):
            if kept.get(name) is not None:
                kept[name] = from_rfc3339(kept[name])
        kept["kind"] = Kind(kept["kind"])
        kept["certainty"] = Certainty(kept["certainty"])
        kept["evidence"] = Evidence(kept["evidence"])
        kept["do"] = None if kept.get("do") is None else Do(kept["do"])
        return cls(**kept)


_EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One poll of a provider: all notices in force, and which signals really answered."""

    notices: tuple[Notice, ...] = ()
    answered: frozenset[str] = frozenset()
    """Signals that gave a wholly good answer in this poll. Only these can withdraw a notice."""
    failed: Mapping[str, ProviderError] = field(default_factory=lambda: _EMPTY)
    """Signals that were asked and failed. A signal in neither set was not asked this time.

    A list with one unreadable item fails its signal, and still raises the `notices` that could be read.
    """
    cancelled: frozenset[str] = frozenset()
    """Ids that an authenticated cancel has ended; for push sources, where absence proves nothing."""
    server_at: datetime | None = None
    """The server's own Date, to tell a stale notice from a wrong local clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to be done for the cases named, at a moment."""

    at: datetime
    do: Do
    why: str
    deadline: datetime | None = None
    case_ids: tuple[str, ...] = ()
    seq: int = 0
    """The number of the order that tells the trainer; 0 until one is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened; the only way that journal, metrics and log learn of anything."""

    at: datetime
    name: str
    provider: str = ""
    case_id: str = ""
    data: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)

    def to_json(self) -> dict[str, JSON]:
        """Return this event as one journal row."""
        row: dict[str, JSON] = {"at": to_rfc3339(self.at), "event": self.name}
        if self.provider:
            row["provider"] = self.provider
        if self.case_id:
            row["case"] = self.case_id
        row.update({k: _plain(v) for k, v in self.data.items()})
        return row

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Event:
        """Return the event that `to_json` wrote; its data keeps JSON types.

        Raises:
            KeyError, ValueError, TypeError: `at` or `event` is missing or has a wrong form.
        """
        data = {k: v for k, v in row.items() if k not in ("at", "event", "provider", "case")}
        return cls(
            at=from_rfc3339(row["at"]),
            name=str(row["event"]),
            provider=str(row.get("provider", "")),
            case_id=str(row.get("case", "")),
            data=data,
        )


def to_rfc3339(moment: datetime) -> str:
    """Return `moment` in UTC with milliseconds and a Z: `2026-11-29T16:12:43.120Z`.

    Raises:
        ValueError: `moment` is naive.
    """
    if moment.tzinfo is None:
        raise ValueError(f"naive datetime {moment!r}; times are aware")
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def from_rfc3339(text: str) -> datetime:
    """Return the aware UTC moment that `text` names.

    Raises:
        ValueError: it is no RFC 3339 time, it has no zone, or lies in UTC before year 1 or after year 9999.
        TypeError: it is no text.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time {text!r} has no zone; write Z or +00:00")
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"time {text!r} is beyond the calendar") from error


def _plain(value: object) -> JSON:
    """Return `value` as JSON types."""
    if isinstance(value, datetime):
        return to_rfc3339(value)
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(v) for v in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)
