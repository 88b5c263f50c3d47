# SPDX-License-Identifier: Apache-2.0
"""What has had its effect on the fleet already, in the relay's own files, written beside the loop.

It judges nothing.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path

from spotwatch.providers._do_replays import Replays
from spotwatch.webhooks import KEEP_SECONDS

_NAME = "relay"


class RelayReplays(Replays):
    """The two memories of a relay.

    Args:
        state_dir: where they outlive a restart; None: nowhere.
        now: aware.
        tolerance_seconds: how far a signed time may be from ours.
    """

    def __init__(self, state_dir: Path | None, *, now: datetime, tolerance_seconds: float) -> None:
        super().__init__(state_dir, _NAME, now=now, keep_seconds=max(KEEP_SECONDS, 2 * tolerance_seconds))
        self._saving = asyncio.Lock()

    async def keep(self) -> bool:
        """Write what has changed; tell whether all is on disk, or none is wanted there."""
        # Whoever waits may be given up meanwhile; the thread still writes, and no later one overtakes it.
        return await asyncio.shield(self._keep_in_turn())

    async def _keep_in_turn(self) -> bool:
        async with self._saving:
            return await asyncio.to_thread(self.save)
