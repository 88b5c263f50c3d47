# SPDX-License-Identifier: Apache-2.0
"""One case (a notice and its progress), how it changes when its notice is seen again, and its moves.

It can be written to the journal and read back. It does not know policy, files or the trainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from spotwatch.deadlines import bounded_seconds, latest_end, on_both_clocks, plannable
from spotwatch.errors import SpotwatchError
from spotwatch.model import Event, Evidence, Kind, Notice, from_rfc3339, to_rfc3339
from spotwatch.policy import CaseView
from spotwatch.records import as_moment

NEW_AFTER_SECONDS = 60.0
JITTER_SECONDS = 1.5
"""Clouds round their times to the second; so small a change is none."""
SLEW_SECONDS = 0.5
"""So far a wall clock drifts or is slewed without having been set: the deadline stays as given, and each
order of a case names the same one."""
SLIDING = 2
"""A time that changed this often slides with every answer, and a later one says nothing."""


class Phase(StrEnum):
    """How far a case has come."""

    SEEN = "seen"
    FLUSHING = "flushing"
    FLUSHED = "flushed"
    STOPPING = "stopping"
    STOPPED = "stopped"
    CLOSED = "closed"


MOVES: Mapping[Phase, frozenset[Phase]] = {
    Phase.SEEN: frozenset({Phase.FLUSHING, Phase.STOPPING, Phase.CLOSED}),
    Phase.FLUSHING: frozenset({Phase.FLUSHING, Phase.FLUSHED, Phase.STOPPING, Phase.CLOSED}),
    Phase.FLUSHED: frozenset({Phase.FLUSHING, Phase.STOPPING, Phase.CLOSED}),
    Phase.STOPPING: frozenset({Phase.STOPPED, Phase.CLOSED}),
    Phase.STOPPED: frozenset({Phase.CLOSED}),
    Phase.CLOSED: frozenset(),
}
STOP_PHASES = frozenset({Phase.STOPPING, Phase.STOPPED})


class IllegalMoveError(SpotwatchError):
    """A case was asked to make a move that `MOVES` does not have."""


@dataclass(slots=True, kw_only=True)
class Case:
    """A notice and its progress."""

    notice: Notice
    first_seen_at: datetime
    first_seen_boot: float
    deadline: datetime | None
    deadline_boot: float | None
    end_boot: float | None = None
    """Not survived before: later than the deadline where our clock was ahead of the cloud's."""
    phase: Phase = Phase.SEEN
    flush_first: bool | None = None
    flushes: int = 0
    last_flush_boot: float | None = None
    last_seq: int = 0
    replans: int = 0
    has_missed: bool = False
    is_released: bool = False
    """The cloud has been told to go ahead."""
    outcome: str = ""
    newest_deadline: datetime | None = None
    slides: int = 0
    """How often the time given has changed; 2 stands for more."""
    # What only the present life of the daemon knows.
    absent_answers: int = 0
    absent_since_boot: float = 0.0

    @classmethod
    def opened(cls, event: Event) -> Case:
        """Return the case that a `noticed` or `notice_stale` event opens."""
        notice = Notice.from_json(event.data["notice"])
        return cls(
            notice=notice,
            first_seen_at=event.at,
            first_seen_boot=float(event.data["boot"]),
            deadline=as_moment(event.data["deadline"]),
            deadline_boot=event.data["deadline_boot"],
            end_boot=event.data.get("end_boot"),
            newest_deadline=notice.deadline,
        )

    def change(self, event: Event) -> None:
        """Take over what a `notice_changed` event says."""
        notice = Notice.from_json(event.data["notice"])
        if notice.kind is not self.notice.kind:
            # A hibernation that became a reclaim: its window begins now, and so does what is done in it.
            self.first_seen_at = event.at
            self.first_seen_boot = float(event.data.get("boot", self.first_seen_boot))
            self.flush_first = None
            self.flushes = 0
        self.notice = notice
        self.deadline = as_moment(event.data["deadline"])
        self.deadline_boot = event.data["deadline_boot"]
        self.end_boot = event.data.get("end_boot")
        self.replans = int(event.data["replans"])

    def move(self, to: Phase) -> None:
        """Go to the phase `to`.

        Raises:
            IllegalMoveError: `MOVES` does not allow it.
        """
        if to not in MOVES[self.phase]:
            raise IllegalMoveError(f"case {self.notice.id}: {self.phase} -> {to}")
        self.phase = to

    @property
    def is_weak(self) -> bool:
        """Tell whether the notice is too weakly proven for a stop."""
        return self.notice.evidence is Evidence.WEAK

    @property
    def ends_machine(self) -> bool:
        """Tell whether the machine is expected to go, so that a deadline can be missed or survived."""
        return self.notice.ends_machine and self.notice.kind in (Kind.RECLAIM, Kind.MAINTENANCE)

    @property
    def is_answered(self) -> bool:
        """Tell whether the last step asked of the trainer was answered."""
        return self.phase in (Phase.FLUSHED, Phase.STOPPED)

    def has_slid(self, notice: Notice) -> bool:
        """Tell whether `notice` gives another time; asked only until the time is known to slide."""
        if self.slides >= SLIDING or notice.deadline is None:
            return False
        old = self.newest_deadline
        return old is None or abs((notice.deadline - old).total_seconds()) > JITTER_SECONDS

    def is_renewed_by(self, notice: Notice, now: datetime) -> bool:
        """Tell whether `notice` is a new one under the id of this closed case."""
        if notice.deadline is None or self.slides >= SLIDING:
            return False
        if self.newest_deadline is None:
            return notice.deadline > now
        later = (notice.deadline - self.newest_deadline).total_seconds()
        return later > NEW_AFTER_SECONDS and notice.deadline > now

    def view(self, *, now: datetime, boot: float) -> CaseView:
        """Return this case in terms of the present wall clock, whichever clock has been stepped."""
        deadline = self.deadline
        if deadline is not None:
            deadline = plannable(deadline, now)
        if deadline is not None and self.deadline_boot is not None:
            by_boot = now + timedelta(seconds=bounded_seconds(self.deadline_boot - boot))
            if (deadline - by_boot).total_seconds() > SLEW_SECONDS:
                deadline = by_boot
        flushed = self.last_flush_boot
        return CaseView(
            notice=self.notice,
            first_seen_at=now - timedelta(seconds=boot - self.first_seen_boot),
            deadline=deadline,
            flushes=self.flushes,
            last_flush_at=None if flushed is None else now - timedelta(seconds=boot - flushed),
            flush_first=self.flush_first,
            is_stopped=self.phase in STOP_PHASES,
        )

    def to_json(self) -> dict[str, Any]:
        """Return what outlives this process, as JSON types."""
        return {
            "notice": self.notice.to_json(),
            "first_seen_at": to_rfc3339(self.first_seen_at),
            "first_seen_boot": self.first_seen_boot,
            "deadline": None if self.deadline is None else to_rfc3339(self.deadline),
            "deadline_boot": self.deadline_boot,
            "end_boot": self.end_boot,
            "phase": self.phase.value,
            "flush_first": self.flush_first,
            "flushes": self.flushes,
            "last_flush_boot": self.last_flush_boot,
            "last_seq": self.last_seq,
            "replans": self.replans,
            "has_missed": self.has_missed,
            "is_released": self.is_released,
            "outcome": self.outcome,
            "newest_deadline": None if self.newest_deadline is None else to_rfc3339(self.newest_deadline),
            "slides": self.slides,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Case:
        """Return the case that `to_json` wrote."""
        known = {name: row[name] for name in _CASE_KEYS if name in row}
        known["notice"] = Notice.from_json(row["notice"])
        known["first_seen_at"] = from_rfc3339(row["first_seen_at"])
        known["deadline"] = as_moment(row["deadline"])
        known["phase"] = Phase(row["phase"])
        newest = row.get("newest_deadline")
        known["newest_deadline"] = as_moment(newest) if newest else known["notice"].deadline
        return cls(**known)


_CASE_KEYS = (
    "first_seen_boot",
    "deadline_boot",
    "end_boot",
    "flush_first",
    "flushes",
    "last_flush_boot",
    "last_seq",
    "replans",
    "has_missed",
    "is_released",
    "outcome",
    "slides",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How a case differs after its notice was seen again."""

    notice: Notice
    deadline: datetime | None
    deadline_boot: float | None
    end_boot: float | None
    replans: int


def merge(
    case: Case, notice: Notice, *, now: datetime, boot: float, skew_seconds: float = 0.0
) -> Change | None:
    """Return how `case` changes now that `notice` was seen under its id; None when it does not.

    The earliest time counts and the more final action; what is better proven or under way is taken over.
    """
    old = case.notice
    is_graver = _gravity(notice) > _gravity(old)
    base = notice if is_graver else old
    merged = replace(
        base,
        evidence=Evidence.STRONG if Evidence.STRONG in (old.evidence, notice.evidence) else Evidence.WEAK,
        has_started=old.has_started or notice.has_started,
        sole_resource=notice.sole_resource,
        seen_at=old.seen_at,
    )
    deadline, deadline_boot = on_both_clocks(notice, now=now, boot=boot, skew_seconds=skew_seconds)
    is_earlier = False
    if is_graver and deadline is None and notice.kind is Kind.RECLAIM:
        # The machine goes, and nobody says when: whatever time was given before is not to be waited for.
        deadline = deadline_boot = None
    elif deadline is None or deadline_boot is None or (case.deadline is None and not is_graver):
        deadline, deadline_boot = case.deadline, case.deadline_boot
        if case.deadline is None and notice.deadline is not None and old.kind is Kind.MAINTENANCE:
            deadline, deadline_boot = on_both_clocks(notice, now=now, boot=boot, skew_seconds=skew_seconds)
            is_earlier = True
    elif case.deadline_boot is not None:
        # The same time again is not an earlier one, though a clock that was set makes it look so.
        is_same = _is_same_or_later(notice.deadline, old.deadline)
        is_earlier = not is_same and deadline_boot < case.deadline_boot - JITTER_SECONDS
        if not is_earlier:
            deadline, deadline_boot = case.deadline, case.deadline_boot
    if is_earlier and not is_graver:
        merged = replace(merged, deadline=notice.deadline, certainty=notice.certainty)
    if not is_graver and not is_earlier and merged == old:
        return None
    replans = case.replans + (is_graver or is_earlier)
    end_boot = case.end_boot
    if deadline_boot != case.deadline_boot:
        end_boot = latest_end(notice, now=now, boot=boot, skew_seconds=skew_seconds)
    return Change(
        notice=merged, deadline=deadline, deadline_boot=deadline_boot, end_boot=end_boot, replans=replans
    )


def _is_same_or_later(deadline: datetime | None, old: datetime | None) -> bool:
    """Tell whether the cloud names no earlier time than before, in its own words."""
    return deadline is not None and old is not None and (deadline - old).total_seconds() >= -JITTER_SECONDS


def _gravity(notice: Notice) -> tuple[int, bool]:
    """Return how final a notice is: what kind, and whether the machine comes back."""
    kinds = {Kind.AT_RISK: 0, Kind.HIBERNATE: 1, Kind.RECLAIM: 4}
    rank = kinds.get(notice.kind, 3 if notice.ends_machine else 2)
    return rank, notice.is_final
