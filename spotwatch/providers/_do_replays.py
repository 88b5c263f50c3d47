# SPDX-License-Identifier: Apache-2.0
"""What has had its effect already, over restarts, so that it has none again; the relay remembers alike.

What was proven is refused rather than forgotten; what was not may be forgotten, so that a flood of it keeps
out nothing. It judges nothing.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from spotwatch.webhooks import ReplayCache

UNPROVEN_CAPACITY = 1000


class Replays:
    """The two memories.

    Args:
        folder: where they outlive a restart; None: nowhere.
        name: of whose they are, for the files.
        now: aware.
        keep_seconds: how long what has had its effect is kept.
    """

    def __init__(self, folder: Path | None, name: str, *, now: datetime, keep_seconds: float) -> None:
        self.proven = ReplayCache(
            None if folder is None else folder / f"{name}-replays.json",
            now=now,
            keep_seconds=keep_seconds,
        )
        self.unproven = ReplayCache(
            None if folder is None else folder / f"{name}-unproven.json",
            now=now,
            capacity=UNPROVEN_CAPACITY,
            keep_seconds=keep_seconds,
            forgets=True,
        )

    @property
    def problem(self) -> str:
        """Return why one could not be read or written; empty: both could."""
        return self.proven.problem or self.unproven.problem

    def save(self) -> bool:
        """Write what has changed; tell whether all is on disk, or none is wanted there. Blocks."""
        return self.proven.save() and self.unproven.save()
