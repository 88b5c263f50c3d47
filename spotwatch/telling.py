# SPDX-License-Identifier: Apache-2.0
"""Hooks and announcements, told in the background: after the trainer, never in its way.

It keeps no order among them and retries nothing: each teller has its own limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from spotwatch.actions import Occasion, Teller
from spotwatch.clock import Clock
from spotwatch.ledger import Ledger
from spotwatch.model import Notice

MAX_PENDING = 32


class Tellers:
    """All who want to hear of cases.

    Args:
        tellers: hook and announcements.
        ledger: learns what came of each telling.
        clock: for durations.
    """

    def __init__(self, tellers: Sequence[Teller], *, ledger: Ledger, clock: Clock) -> None:
        self._tellers = tuple(tellers)
        self._ledger = ledger
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self, occasion: Occasion, notice: Notice, facts: Mapping[str, Any]) -> None:
        """Start telling everybody who listens for `occasion`; returns at once."""
        for teller in self._tellers:
            if occasion not in teller.occasions:
                continue
            if len(self._tasks) >= MAX_PENDING:
                self._ledger.record("acted", action=teller.name, result="failed", seconds=0.0, detail="busy")
                continue
            task = asyncio.create_task(self._tell_one(teller, occasion, notice, facts))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def finish(self, seconds: float) -> None:
        """Wait at most `seconds` for what is under way, then end it."""
        pending = set(self._tasks)
        if pending:
            _, late = await asyncio.wait(pending, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _tell_one(
        self, teller: Teller, occasion: Occasion, notice: Notice, facts: Mapping[str, Any]
    ) -> None:
        began = self._clock.monotonic()
        result = "ok"
        try:
            detail = await teller.tell(occasion, notice, facts)
        except Exception as error:  # noqa: BLE001 - telling can fail in any way without effect
            result, detail = "failed", f"{type(error).__name__}: {error}"
        self._ledger.record(
            "acted",
            case=notice.id,
            provider=notice.provider,
            action=teller.name,
            result=result,
            seconds=self._clock.monotonic() - began,
            detail=f"{occasion}: {detail}",
        )
