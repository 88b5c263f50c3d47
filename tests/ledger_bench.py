# SPDX-License-Identifier: Apache-2.0
"""A ledger with a clock that moves only when told, and all that it has said."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from spotwatch.ledger import Ledger
from spotwatch.model import Answer, Event, Kind, Notice
from spotwatch.testing import EPOCH


class StandingClock:
    """A clock that moves only when told."""

    def __init__(self) -> None:
        self.boot_id = "boot-1"
        self.seconds = 0.0
        self.wall_offset_seconds = 0.0

    def now(self) -> object:
        """Return the wall clock."""
        return EPOCH + timedelta(seconds=self.seconds + self.wall_offset_seconds)

    def boot(self) -> float:
        """Return the boot clock."""
        return 1000.0 + self.seconds

    def monotonic(self) -> float:
        """Return the monotonic clock."""
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds


class Bench:
    """A ledger, its clock and all its events."""

    def __init__(self) -> None:
        self.clock = StandingClock()
        self.seen: list[Event] = []
        self.ledger = self.start([])

    def start(self, events: list[Event]) -> Ledger:
        """Return a ledger that has replayed `events`, as JSON gives them back."""
        ledger = Ledger(self.clock)  # type: ignore[arg-type]
        ledger.replay(Event.from_json(event.to_json()) for event in events)
        ledger.subscribe(self.seen.append)
        return ledger

    def restart(self) -> None:
        """Start a new life from the rows alone."""
        self.ledger = self.start(self.seen)

    def notice(self, seconds: float | None = 120.0, **changes: object) -> Notice:
        """Return a notice whose deadline is so many seconds from the start."""
        deadline = None if seconds is None else EPOCH + timedelta(seconds=seconds)
        made = Notice(id="i", provider="aws", signal="s", kind=Kind.RECLAIM, seen_at=EPOCH, deadline=deadline)
        return replace(made, **changes)  # type: ignore[arg-type]

    def see(self, *notices: Notice, provider: str = "aws", withdraws: bool = True) -> None:
        """Hand over one good answer."""
        server_at = EPOCH + timedelta(seconds=self.clock.seconds)
        answer = Answer(notices=notices, answered=frozenset({"s"}), server_at=server_at)
        self.ledger.observe(provider, answer, absence_withdraws=withdraws)

    def names(self) -> list[str]:
        """Return the names of all events."""
        return [event.name for event in self.seen]
