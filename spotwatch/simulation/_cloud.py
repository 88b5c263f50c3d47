# SPDX-License-Identifier: Apache-2.0
"""The cloud of a simulation: a provider that says what the story has it say, and fails when that has it fail.

It remembers what it answered, so that it can be told whether an order was right. It acts on nothing.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import TracebackType
from typing import Any, ClassVar, Self

from spotwatch.errors import Unavailable
from spotwatch.model import Answer, Kind, Notice
from spotwatch.simulation._story import WINDOW_SECONDS, Announced, Story
from spotwatch.testing import FakeClock

SIGNAL = "action"


class Cloud:
    """A provider; the same object over all lives of the daemon.

    Args:
        story: what it says when.
        clock: of the machine; its own clock is right.
    """

    name: ClassVar[str] = "aws"
    config_class: ClassVar[type] = dict
    absence_withdraws: ClassVar[bool] = True
    signals = (SIGNAL,)
    interval_seconds = 1.0

    def __init__(self, story: Story, clock: FakeClock) -> None:
        self._story = story
        self._clock = clock
        self.first_shown: dict[str, float] = {}
        """When each notice was first in a good answer."""
        self.absences: dict[str, list[float]] = {}
        """The good answers in a row without a notice once shown."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close nothing."""

    async def detect(self) -> bool:
        """Say yes."""
        return True

    async def notices(self) -> Any:
        """Answer, or fail as the story has it."""
        now = self._clock.monotonic()
        fault = next((what for start, end, what in self._story.faults if start <= now < end), None)
        if fault == "raising":
            raise RuntimeError("a fault of the provider's own")
        if fault == "cancelled":
            raise asyncio.CancelledError
        if fault == "garbage":
            return {"notices": []}
        if fault == "hanging":
            await asyncio.sleep(3600)
        if fault == "silent":
            return Answer(failed={SIGNAL: Unavailable("no answer")})
        shown = [one for one in self._story.notices if one.is_shown(now)]
        names = {one.id for one in shown}
        for one in shown:
            self.first_shown.setdefault(one.id, now)
        for name in self.first_shown:
            self.absences[name] = [] if name in names else [*self.absences.get(name, []), now]
        true_now = self._clock.start + timedelta(seconds=now)
        made = tuple(self._notice(one, now) for one in shown)
        return Answer(notices=made, answered=frozenset({SIGNAL}), server_at=true_now)

    async def wait(self) -> None:
        """Return after a second."""
        await self._clock.sleep(self.interval_seconds)

    def may_be_believed(self, notice_id: str) -> bool:
        """Tell whether the notice was shown and has not been absent for long enough to be withdrawn."""
        absences = self.absences.get(notice_id, [])
        is_withdrawn = len(absences) > 2 and absences[-1] - absences[0] >= 3.0  # noqa: PLR2004 - the rule of withdrawal
        return notice_id in self.first_shown and not is_withdrawn

    def _notice(self, one: Announced, now: float) -> Notice:
        deadline = one.deadline(now)
        return Notice(
            id=one.id,
            provider=self.name,
            signal=SIGNAL,
            kind=one.kind,
            seen_at=self._clock.now(),
            deadline=None if deadline is None else self._clock.start + timedelta(seconds=deadline),
            certainty=one.certainty,
            window_seconds=WINDOW_SECONDS if one.kind is Kind.RECLAIM else None,
            ends_machine=one.ends_machine,
            is_final=now >= one.final_at,
            evidence=one.evidence,
        )
