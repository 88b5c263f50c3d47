# SPDX-License-Identifier: Apache-2.0
"""All that a push leaves behind: the inbox, and what has had its effect already.

It judges nothing.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from spotwatch.providers._do_inbox import Inbox
from spotwatch.providers._do_replays import Replays
from spotwatch.providers._do_slot import PROVIDER_NAME
from spotwatch.received import Verdict


class Memory:
    """Empty until it is opened."""

    def __init__(self) -> None:
        self._saving = asyncio.Lock()
        self.open(None, now=datetime.fromtimestamp(0, UTC), keep_seconds=1.0)

    def open(self, folder: Path | None, *, now: datetime, keep_seconds: float) -> None:
        """Read what an earlier life has kept.

        Args:
            folder: where; None: nowhere, memory only.
            now: aware.
            keep_seconds: how long what has had its effect is kept.
        """
        self.inbox = Inbox(None if folder is None else folder / f"{PROVIDER_NAME}-inbox.json")
        self._replays = Replays(folder, PROVIDER_NAME, now=now, keep_seconds=keep_seconds)
        self.proven, self.unproven = self._replays.proven, self._replays.unproven

    @property
    def problem(self) -> str:
        """Return why something could not be read or written; empty when all could."""
        return self.inbox.problem or self._replays.problem

    async def save(self) -> bool:
        """Write what has changed; tell whether all is on disk, or none is wanted there."""
        # Whoever waits may be given up meanwhile; the thread still writes, and no later one overtakes it.
        return await asyncio.shield(self._save_in_turn())

    async def _save_in_turn(self) -> bool:
        async with self._saving:
            return await asyncio.to_thread(self._save)

    async def kept(self, verdict: Verdict) -> Verdict:
        """Return `verdict` when all it rests on is on disk, else 503, so that it is sent again."""
        return verdict if await self.save() else Verdict(status=503, result=verdict.result)

    def _save(self) -> bool:
        # The inbox first: dying in between, a repeated push merges into the notice it made.
        return self.inbox.save() and self._replays.save()
