# SPDX-License-Identifier: Apache-2.0
"""Fakes for tests, ours and yours: a clock on virtual time, so that a two-hour window passes at once.

It does not fake files, processes or HTTP: those are cheap enough to be real. Standard library only.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import selectors
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

T = TypeVar("T")

EPOCH = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
"""The moment at which virtual time begins unless a test says otherwise."""


class _JumpingSelector(selectors.BaseSelector):
    """Hand over ready sockets; when there are none, let time jump instead of waiting."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.virtual_seconds = 0.0

    def register(
        self,
        fileobj: Any,
        events: int,
        data: Any = None,
    ) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return self._real.select(None)
        ready = self._real.select(0)
        if not ready and timeout > 0:
            self.virtual_seconds += timeout
        return ready

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer as soon as nothing else is ready.

    Work for threads is done at once and in place, so that no thread can be overtaken by the jumping time.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._jumping.virtual_seconds

    def run_in_executor(  # type: ignore[override]
        self,
        executor: concurrent.futures.Executor | None,
        func: Callable[..., T],
        *args: Any,
    ) -> asyncio.Future[T]:
        """Call `func` here and now."""
        del executor
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - handed to whoever awaits
            future.set_exception(error)
        return future


class FakeClock:
    """A clock that follows the running (virtual) event loop, and can be pushed about.

    Args:
        start: what `now()` says at loop time 0.
        boot_id: the name of this boot; change it to play a reboot.
    """

    def __init__(self, start: datetime = EPOCH, boot_id: str = "boot-1") -> None:
        self.start = start
        self.boot_id = boot_id
        self.wall_offset_seconds = 0.0
        """Added to `now()` only: an NTP step or a wrong clock."""
        self.boot_offset_seconds = 1000.0

    def _elapsed(self) -> float:
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        """Return the virtual wall clock."""
        return self.start + timedelta(seconds=self._elapsed() + self.wall_offset_seconds)

    def boot(self) -> float:
        """Return the virtual boot clock, which no wall step moves."""
        return self._elapsed() + self.boot_offset_seconds

    def monotonic(self) -> float:
        """Return the virtual monotonic clock."""
        return self._elapsed()

    async def sleep(self, seconds: float) -> None:
        """Sleep in virtual time."""
        await asyncio.sleep(seconds)


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on a new `VirtualLoop` and return its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
