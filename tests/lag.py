# SPDX-License-Identifier: Apache-2.0
"""How long the loop was held up by this process itself, on a machine that others load and that may be slow.

Of the time by which a tick came late counts at most what this process has computed since the tick before, in
any thread: so other load does not count. It is compared with how fast the machine is at plain Python: so that
a slow one is not called a fault of ours. It holds no test.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from spotwatch.memory import settle_memory

MOST_SECONDS = 0.1
"""What the loop may be late by, on the machine where that limit was set."""
_TICK_SECONDS = 0.005
# A million additions of integers on that machine.
_NOMINAL_SECONDS = 0.035


@dataclass(slots=True)
class Lag:
    """The worst lag so far, and the machine's share in it."""

    slowness: float
    """How many times slower than the nominal machine this one computes, at least 1."""
    worst_seconds: float = 0.0

    @property
    def is_fine(self) -> bool:
        """Tell whether the loop was never held up for too long."""
        return self.worst_seconds < MOST_SECONDS * self.slowness


@asynccontextmanager
async def watching() -> AsyncIterator[Lag]:
    """Watch the running loop; the collector leaves alone what was there before, as in the daemon."""
    settle_memory()
    lag = Lag(_slowness())
    ticking = asyncio.create_task(_tick(lag))
    try:
        yield lag
    finally:
        ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticking
        gc.unfreeze()


async def _tick(lag: Lag) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due, computed = loop.time() + _TICK_SECONDS, time.process_time()
        await asyncio.sleep(_TICK_SECONDS)
        ours = min(loop.time() - due, time.process_time() - computed)
        lag.worst_seconds = max(lag.worst_seconds, ours)


def _slowness() -> float:
    began = time.process_time()
    total = 0
    for number in range(1_000_000):
        total += number
    return max(1.0, (time.process_time() - began) / _NOMINAL_SECONDS)
