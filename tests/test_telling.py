# SPDX-License-Identifier: Apache-2.0
"""Hooks and announcements fail, hang and pile up; nothing else notices."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from spotwatch.actions import Occasion
from spotwatch.dry_run import DryTeller
from spotwatch.ledger import Ledger
from spotwatch.model import Event, Kind, Notice
from spotwatch.telling import MAX_PENDING, Tellers
from spotwatch.testing import EPOCH, FakeClock, run_virtual

NOTICE = Notice(id="i", provider="aws", signal="s", kind=Kind.RECLAIM, seen_at=EPOCH)


class Ear:
    """Takes a second, or as long as it is told, or fails."""

    name: ClassVar[str] = "announce"
    occasions: frozenset[Occasion] = frozenset({"notice"})

    def __init__(self, *, seconds: float = 1.0, error: Exception | None = None) -> None:
        self.seconds = seconds
        self.error = error
        self.heard = 0

    async def tell(self, occasion: Occasion, notice: Notice, facts: Mapping[str, Any]) -> str:
        """Hear it."""
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        self.heard += 1
        return f"{notice.id} {len(facts)}"


class Bench:
    """Tellers and what came of them."""

    def __init__(self, *ears: Any) -> None:
        clock = FakeClock()
        self.seen: list[Event] = []
        self.ledger = Ledger(clock)
        self.ledger.subscribe(self.seen.append)
        self.tellers = Tellers(ears, ledger=self.ledger, clock=clock)

    def results(self) -> list[tuple[str, str]]:
        """Return result and detail of each telling."""
        return [(e.data["result"], e.data["detail"]) for e in self.seen]


def test_at_once_and_measured() -> None:
    """`tell` returns before anybody has heard; the outcome is recorded with its duration."""

    async def main() -> None:
        bench = Bench(Ear())
        bench.tellers.tell("notice", NOTICE, {"a": 1})
        assert bench.seen == []
        await bench.tellers.finish(5)
        assert bench.results() == [("ok", "notice: i 1")]
        assert bench.seen[0].data["seconds"] == pytest.approx(1.0)

    run_virtual(main())


def test_only_what_one_wants_to_hear() -> None:
    """Another occasion is not told."""

    async def main() -> None:
        ear = Ear()
        bench = Bench(ear)
        bench.tellers.tell("saved", NOTICE, {})
        await bench.tellers.finish(5)
        assert ear.heard == 0

    run_virtual(main())


def test_one_fails() -> None:
    """In a way of its own; the other one hears all the same."""

    async def main() -> None:
        good = Ear()
        bench = Bench(Ear(error=ZeroDivisionError("bug")), good)
        bench.tellers.tell("notice", NOTICE, {})
        await bench.tellers.finish(5)
        assert good.heard == 1
        assert ("failed", "notice: ZeroDivisionError: bug") in bench.results()

    run_virtual(main())


def test_one_hangs() -> None:
    """At the end it is waited for so long and no longer, and no task is left."""

    async def main() -> None:
        bench = Bench(Ear(seconds=10**6))
        bench.tellers.tell("notice", NOTICE, {})
        began = asyncio.get_running_loop().time()
        await bench.tellers.finish(5)
        assert asyncio.get_running_loop().time() - began == pytest.approx(5)
        assert len(asyncio.all_tasks()) == 1

    run_virtual(main())


def test_too_many_at_once() -> None:
    """Thirty-two wait; what comes beyond them is counted as failed."""

    async def main() -> None:
        bench = Bench(Ear(seconds=60))
        for _ in range(MAX_PENDING + 3):
            bench.tellers.tell("notice", NOTICE, {})
        assert bench.results() == [("failed", "busy")] * 3
        await bench.tellers.finish(0)

    run_virtual(main())


async def test_dry() -> None:
    """A dry run tells nobody and says what it would have told."""
    ear = Ear()
    dry = DryTeller(ear)
    assert dry.occasions == ear.occasions
    assert await dry.tell("notice", NOTICE, {}) == "would tell of notice of i by announce"
    assert ear.heard == 0
