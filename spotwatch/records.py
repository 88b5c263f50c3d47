# SPDX-License-Identifier: Apache-2.0
"""One order and one save, as the journal keeps them.

They do not know cases, policy, files or the trainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from spotwatch.model import Do, from_rfc3339, to_rfc3339
from spotwatch.policy import MeasuredSave


@dataclass(slots=True, kw_only=True)
class Order:
    """One thing that the trainer was, or is to be, told."""

    seq: int
    do: Do
    why: str
    at: datetime
    boot: float
    deadline: datetime | None = None
    case_ids: tuple[str, ...] = ()
    procs: dict[str, Any] = field(default_factory=dict)
    """By target label: the processes that were to be signalled, as JSON."""
    told: list[str] = field(default_factory=list)
    """Who has been told: `handshake`, target labels."""
    answer: str = ""
    """`durable`, `acknowledged`, or empty."""
    answered_at: datetime | None = None

    def to_json(self) -> dict[str, Any]:
        """Return this order as JSON types."""
        row = asdict(self)
        row["at"] = to_rfc3339(self.at)
        for name in ("deadline", "answered_at"):
            row[name] = None if row[name] is None else to_rfc3339(row[name])
        row["do"] = self.do.value
        row["case_ids"] = list(self.case_ids)
        return row

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Order:
        """Return the order that `to_json` wrote."""
        return cls(
            seq=int(row["seq"]),
            do=Do(row["do"]),
            why=str(row["why"]),
            at=from_rfc3339(row["at"]),
            boot=float(row["boot"]),
            deadline=as_moment(row["deadline"]),
            case_ids=tuple(row["case_ids"]),
            procs=dict(row.get("procs", {})),
            told=list(row.get("told", [])),
            answer=str(row.get("answer", "")),
            answered_at=as_moment(row.get("answered_at")),
        )


@dataclass(slots=True, kw_only=True)
class SaveRecord:
    """One save of the run, as its trainer reported it or as a removed flag showed it."""

    at: datetime
    boot: float | None
    """When on the boot clock; None: in an earlier boot."""
    seconds: float
    is_durable: bool
    run_id: str = ""
    step: int = 0
    step_seconds: float = 0.0
    stall_seconds: float = 0.0

    def measured(self) -> MeasuredSave:
        """Return what the estimate needs."""
        return MeasuredSave(seconds=self.seconds, is_durable=self.is_durable, step_seconds=self.step_seconds)

    def to_json(self) -> dict[str, Any]:
        """Return this save as JSON types."""
        row = asdict(self)
        row["at"] = to_rfc3339(self.at)
        return row

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> SaveRecord:
        """Return the save that `to_json` wrote; unknown keys are ignored."""
        known = {name: row[name] for name in cls.__slots__ if name in row}
        known["at"] = from_rfc3339(row["at"])
        return cls(**known)


def as_moment(value: Any) -> datetime | None:
    """Return a moment from the journal (text) or from a live event (a moment)."""
    return from_rfc3339(value) if isinstance(value, str) else value
