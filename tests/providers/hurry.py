# SPDX-License-Identifier: Apache-2.0
"""A clock that runs many times faster than the real one, for tests with real sockets.

Virtual time would jump while bytes are still on their way. It does not speed up the time limits of requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

from aiohttp import web

from spotwatch.providers import Context
from spotwatch.testing import EPOCH


class HurriedClock:
    """Each real second counts as `factor` seconds."""

    boot_id = "boot-1"

    def __init__(self, factor: float = 20.0) -> None:
        self.factor = factor
        self._started = time.monotonic()

    def now(self) -> datetime:
        """Return the wall clock, from EPOCH on."""
        return EPOCH + timedelta(seconds=self.monotonic())

    def boot(self) -> float:
        """Return the hurried seconds since this clock was made."""
        return self.monotonic()

    def monotonic(self) -> float:
        """Return the hurried seconds since this clock was made."""
        return (time.monotonic() - self._started) * self.factor

    async def sleep(self, seconds: float) -> None:
        """Sleep for a fraction of `seconds`."""
        await asyncio.sleep(seconds / self.factor)


def context(clock: HurriedClock | None = None) -> Context:
    """Return what a provider is given."""
    return Context(clock=clock or HurriedClock(), runtime_dir=Path("/nonexistent"))


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    """Serve `app` on a free loopback port and yield its address; requests under way are cut at the end."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()
