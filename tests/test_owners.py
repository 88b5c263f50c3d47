# SPDX-License-Identifier: Apache-2.0
"""Whose files count, and that finding it out holds nobody up."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

from spotwatch.clock import SystemClock
from spotwatch.owners import KNOWN_SECONDS, Owners
from spotwatch.targets import Proc
from spotwatch.testing import FakeClock, run_virtual


class Slow:
    """A target whose owner takes as long to find as the test wants."""

    label = "unit x.service"
    signum = signal.SIGTERM

    def __init__(self, owner: tuple[int, int] | None) -> None:
        self.known = owner
        self.gate = threading.Event()
        self.gate.set()
        self.asked = 0

    def find(self) -> tuple[Proc, ...]:
        """Find nobody."""
        return ()

    def owner(self) -> tuple[int, int] | None:
        """Answer when let."""
        self.asked += 1
        self.gate.wait(10)
        return self.known

    async def stop(self, procs: tuple[Proc, ...]) -> str:
        """Do nothing."""
        return str(procs)

    async def start(self) -> str:
        """Do nothing."""
        return ""


async def test_a_slow_manager_blocks_nobody() -> None:
    """While the owner is looked for the loop turns, and whoever asks gets what is known."""
    target = Slow((12345, 54321))
    target.gate.clear()
    owners = Owners("", [target], SystemClock())
    began = time.monotonic()
    assert owners.of_status() == {os.geteuid()}
    assert owners.of_flag() is None
    assert time.monotonic() - began < 5
    await asyncio.wait_for(owners.refresh(), 8)
    assert owners.of_flag() is None
    target.gate.set()
    async with asyncio.timeout(10):
        while owners.of_flag() is None:
            await owners.refresh()
    assert owners.of_flag() == (12345, 54321)
    assert owners.of_status() == {os.geteuid(), 12345}
    assert target.asked == 1


def test_one_that_goes_away_is_remembered() -> None:
    """The user last seen still counts: its status and its flag are still there."""

    async def main() -> None:
        target = Slow((7, 8))
        owners = Owners("", [target], FakeClock())
        await owners.refresh()
        target.known = None
        await asyncio.sleep(KNOWN_SECONDS + 1)
        owners.of_status()
        await asyncio.sleep(0)
        assert owners.of_flag() == (7, 8)

    run_virtual(main())


def test_looked_for_again_now_and_then() -> None:
    """Once in ten seconds, however often one asks; told when it is found or changes, and only then."""
    found: list[tuple[int, int]] = []

    async def main() -> Slow:
        target = Slow(None)
        owners = Owners("", [target], FakeClock(), on_found=found.append)
        for second in range(60):
            owners.of_status()
            if second == 30:
                target.known = (7, 8)
            await asyncio.sleep(1)
        return target

    assert run_virtual(main()).asked == 6
    assert found == [(7, 8)]


def test_the_configured_owner_goes_first() -> None:
    """Nobody has to be looked for then."""

    async def main() -> None:
        target = Slow((7, 8))
        owners = Owners("1:2", [target], FakeClock())
        await owners.refresh()
        assert (owners.of_flag(), target.asked) == ((1, 2), 0)

    run_virtual(main())
