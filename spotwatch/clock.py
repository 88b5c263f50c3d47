# SPDX-License-Identifier: Apache-2.0
"""Time and the identity of this boot, as arguments instead of globals.

It does not decide anything by time; the fake one lives in `spotwatch.testing`. Standard library only.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

# proc(5), "random": a random uuid made once per boot. Containers see their host's.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """What the daemon may know about time."""

    @property
    def boot_id(self) -> str:
        """Return a name of this boot of this machine; another one after each reboot."""

    def now(self) -> datetime:
        """Return the wall clock, aware, UTC."""

    def boot(self) -> float:
        """Return the seconds since boot, suspension included, never stepped by NTP."""

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start, for time-outs only."""

    async def sleep(self, seconds: float) -> None:
        """Return after at least `seconds`."""


class SystemClock:
    """The real clocks of this machine."""

    def __init__(self) -> None:
        self._boot_id = read_boot_id()

    @property
    def boot_id(self) -> str:
        """Return the kernel's boot id."""
        return self._boot_id

    def now(self) -> datetime:
        """Return the wall clock, aware, UTC."""
        return datetime.now(UTC)

    def boot(self) -> float:
        """Return CLOCK_BOOTTIME, or CLOCK_MONOTONIC where the system has none."""
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def monotonic(self) -> float:
        """Return the monotonic clock."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the running event loop."""
        await asyncio.sleep(seconds)


def read_boot_id() -> str:
    """Return the kernel's boot id; a random one where the kernel has none, so that nothing old is trusted."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return f"no-boot-id-{uuid.uuid4()}"
