# SPDX-License-Identifier: Apache-2.0
"""What the lease's tests share: a store in memory with faults to order, time that passes at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from spotwatch.errors import StoreError
from spotwatch.testing import MemoryStore
from spotwatch.train.lease.form import LEASE, Claim
from spotwatch.train.lease.lease import Lease
from spotwatch.train.lease.owner import Owner

Wrong = Callable[[str], None]


def nothing(*_: object) -> None:
    """Be called."""


class Shelf(MemoryStore):
    """A store in memory that fails to order.

    Args:
        is_conditional: whether it compares and swaps.
    """

    def __init__(self, *, is_conditional: bool = True) -> None:
        super().__init__(is_conditional=is_conditional)
        self.before: Wrong = nothing
        """Called with the deed before anything is done; may raise."""
        self.after: Wrong = nothing
        """Called when it is done; what it raises is an answer that got lost."""

    def put(self, key: str, body: bytes) -> None:
        """Store."""
        self.before("put")
        super().put(key, body)
        self.after("put")

    def put_if(self, key: str, body: bytes, version: str | None) -> str:
        """Compare and swap."""
        if not self.is_conditional:
            raise AssertionError("a store that cannot compare was asked to")
        self.before("put_if")
        new = super().put_if(key, body, version)
        self.after("put_if")
        return new

    def read(self, key: str, *, most_bytes: int) -> tuple[bytes, str]:
        """Return bytes and version."""
        self.before("read")
        return super().read(key, most_bytes=most_bytes)

    def claim(self) -> Claim:
        """Return what LEASE says."""
        return Claim.from_bytes(self.objects[LEASE])

    def write(self, claim: Claim) -> None:
        """Let a stranger have written it."""
        self.put(LEASE, claim.to_bytes())


class Time:
    """Passes only when somebody sleeps, and lets things happen meanwhile."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.asked = 0
        """How often somebody wanted to know it."""
        self._due: list[tuple[float, Callable[[], None]]] = []

    def monotonic(self) -> float:
        """Return the present."""
        self.asked += 1
        return self.now

    def at(self, seconds: float, what: Callable[[], None]) -> None:
        """Let something happen so many seconds from the beginning."""
        self._due.append((1000.0 + seconds, what))

    def every(self, seconds: float, until: float, what: Callable[[], None]) -> None:
        """Let it happen again and again."""
        for number in range(1, int(until / seconds) + 1):
            self.at(number * seconds, what)

    def sleep(self, seconds: float) -> None:
        """Pass."""
        self.now += seconds
        for item in sorted(self._due, key=lambda due: due[0]):
            if item[0] <= self.now:
                self._due.remove(item)
                item[1]()

    @property
    def passed(self) -> float:
        """Return the seconds since the beginning."""
        return self.now - 1000.0


def stranger(name: str = "far") -> Owner:
    """Return a process on another machine."""
    return Owner(
        writer=f"{name}:7:0123456789abcdef",
        host=name,
        pid=7,
        boot_id=f"boot-of-{name}",
        pid_namespace=4026531836,
        start_ticks=700,
    )


def claim(owner: Owner | None = None, **changes: object) -> Claim:
    """Return a claim that is in force."""
    made = Claim(
        owner=owner or stranger(),
        generation=4,
        beat=9,
        taken_at="2026-11-29T12:00:00.000Z",
        renewed_at="2026-11-29T12:10:00.000Z",
        ttl_seconds=60.0,
        lived_seconds=600.0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # tests give what they mean


def lease(store: Shelf, time: Time, owner: Owner | None = None, **options: Any) -> Lease:
    """Return a lease in virtual time."""
    return Lease(store, owner or Owner.here(), monotonic=time.monotonic, sleep=time.sleep, **options)


def refuse(*deeds: str) -> Wrong:
    """Return a fault for these deeds."""

    def fault(deed: str) -> None:
        if deed in deeds:
            raise StoreError(f"{deed}: out of reach")

    return fault


def until(condition: Callable[[], bool]) -> None:
    """Wait, in real time, until something holds."""
    waiting = threading.Event()
    for _ in range(2000):
        if condition():
            return
        waiting.wait(0.005)
    raise AssertionError("it did not come to pass")
