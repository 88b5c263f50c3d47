# SPDX-License-Identifier: Apache-2.0
"""Virtual time for tests with real sockets on loopback: it jumps only while nothing is under way on them.

A provider's pauses cost nothing, and how busy the machine is moves no moment, so that bounds are exact. Bytes
that go to or come from another process or machine would be overtaken.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ParamSpec

from aiohttp import web

from spotwatch.providers import Context
from spotwatch.testing import FakeClock, VirtualLoop

P = ParamSpec("P")

# What one end of a loopback connection sends is with the other end when send() returns; the kernel may put
# that off for a moment when it is busy.
_SILENCE_SECONDS = 0.005


class _QuietSelector(selectors.DefaultSelector):
    """Hand over ready sockets; when there are none for a moment, let time jump instead of waiting."""

    virtual_seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready, or nothing after a jump of `timeout` seconds."""
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(_SILENCE_SECONDS)
        if not ready:
            self.virtual_seconds += timeout
        return ready


class QuietLoop(asyncio.SelectorEventLoop):
    """An event loop whose time, time limits included, jumps to the next timer once its sockets are quiet."""

    # At once and in place: a thread would be overtaken.
    run_in_executor = VirtualLoop.run_in_executor  # type: ignore[assignment]  # as loosely typed as there

    def __init__(self) -> None:
        self._quiet = _QuietSelector()
        super().__init__(self._quiet)

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._quiet.virtual_seconds


def in_quiet_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Return `test` as a plain function that runs it on a `QuietLoop` of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=QuietLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


def virtual_now() -> float:
    """Return the seconds of the running loop, which are the clock's too."""
    return asyncio.get_running_loop().time()


def since(began: float) -> float:
    """Return the seconds since that moment, to the microsecond: sums of floats are not exact."""
    return round(virtual_now() - began, 6)


def context(clock: FakeClock) -> Context:
    """Return what a provider is given."""
    return Context(clock=clock, runtime_dir=Path("/nonexistent"))


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
