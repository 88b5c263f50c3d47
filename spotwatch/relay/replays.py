# SPDX-License-Identifier: Apache-2.0
"""What has had its effect on the fleet already, over restarts, so that it has none again.

What was proven is refused rather than forgotten; what was not may be forgotten, so that a flood of it keeps
out nothing. It judges nothing.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path

from spotwatch.webhooks import KEEP_SECONDS, ReplayCache

_UNPROVEN_CAPACITY = 1000


class Replays:
    """The two memories.

    Args:
        state_dir: where they outlive a restart; None: nowhere.
        now: aware.
        tolerance_seconds: how far a signed time may be from ours.
    """

    def __init__(self, state_dir: Path | None, *, now: datetime, tolerance_seconds: float) -> None:
        keep_seconds = max(KEEP_SECONDS, 2 * tolerance_seconds)
        self.proven = ReplayCache(
            None if state_dir is None else state_dir / "relay-replays.json",
            now=now,
            keep_seconds=keep_seconds,
        )
        self.unproven = ReplayCache(
            None if state_dir is None else state_dir / "relay-unproven.json",
            now=now,
            capacity=_UNPROVEN_CAPACITY,
            keep_seconds=keep_seconds,
            forgets=True,
        )
        self._saving = asyncio.Lock()

    @property
    def problem(self) -> str:
        """Return why one could not be read or written; empty: both could."""
        return self.proven.problem or self.unproven.problem

    async def save(self) -> bool:
        """Write what has changed; tell whether all is on disk, or none is wanted there."""
        async with self._saving:
            return await asyncio.to_thread(lambda: self.proven.save() and self.unproven.save())
