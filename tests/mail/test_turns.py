# SPDX-License-Identifier: Apache-2.0
"""Who has the next turn, and who loses his place."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from spotwatch.mail.turns import NoTurn, TooHard, Turns

FOREVER = 3600.0


class Bench:
    """Turns whose first piece of work lasts until it is let go."""

    def __init__(self, *, most_waiting: int = 10, most_bytes: int = 1000) -> None:
        self.turns = Turns(most_waiting=most_waiting, most_bytes=most_bytes)
        self.gate = threading.Event()
        self.done: list[str] = []
        self.first = self.add("first", self.hold)

    def hold(self) -> None:
        """Last until let go."""
        self.gate.wait(15)

    def add(
        self, name: str, work: Callable[[], None] = lambda: None, *, rank: int = 0, size: int = 1
    ) -> asyncio.Task[None]:
        """Ask for a turn."""

        async def ask() -> None:
            def all_of_it() -> None:
                work()
                self.done.append(name)

            until = asyncio.get_running_loop().time() + FOREVER
            await self.turns.run(all_of_it, rank=rank, size=size, until=until)

        return asyncio.create_task(ask())


async def test_what_matters_goes_first_then_the_oldest() -> None:
    """In this order, whatever their size within a kind."""
    bench = Bench()
    tasks = [
        bench.add("old", rank=1, size=3),
        bench.add("later", rank=1, size=2),
        bench.add("last", rank=1, size=1),
        bench.add("first in rank", rank=0, size=9),
    ]
    await asyncio.sleep(0)
    bench.gate.set()
    await asyncio.gather(bench.first, *tasks)
    assert bench.done == ["first", "first in rank", "old", "later", "last"]


@pytest.mark.parametrize(
    ("many", "few", "most_before"), [(1_000, 24_000, 6), (1_000, 200_000, 1), (200_000, 24_000, 1)]
)
async def test_many_of_one_size_do_not_keep_another_size_waiting(
    many: int, few: int, most_before: int
) -> None:
    """Each kind has its share, so that of a flood only so much goes before as the one has bytes."""
    bench = Bench(most_waiting=100, most_bytes=10**9)
    flood = [bench.add("flood", size=many) for _ in range(40)]
    await asyncio.sleep(0)
    one = bench.add("one", size=few)
    flood += [bench.add("flood", size=many) for _ in range(40)]
    await asyncio.sleep(0)
    bench.gate.set()
    await asyncio.gather(bench.first, one, *flood)
    assert bench.done.index("one") - 1 <= most_before


async def test_a_kind_that_was_idle_has_saved_nothing_and_owes_nothing() -> None:
    """A share is of now: whoever comes after a long flood of the other kind shares from then on."""
    bench = Bench(most_waiting=100, most_bytes=10**9)
    flood = [bench.add("small", size=1_000) for _ in range(30)]
    await asyncio.sleep(0)
    bench.gate.set()
    async with asyncio.timeout(15):
        await asyncio.gather(bench.first, *flood)
    bench.gate.clear()
    held = bench.add("held", bench.hold, size=1_000)
    await asyncio.sleep(0)
    rest = [bench.add(name, size=size) for _ in range(3) for name, size in (("l", 9_000), ("s", 9_00))]
    await asyncio.sleep(0)
    bench.gate.set()
    await asyncio.gather(held, *rest)
    assert bench.done[-6:-3].count("l") in (1, 2)


@pytest.mark.parametrize(
    ("bounds", "lost"),
    [({"most_waiting": 3, "most_bytes": 10**9}, "s3"), ({"most_waiting": 9, "most_bytes": 25_000}, "l")],
)
async def test_who_takes_most_room_loses_his_newest(bounds: dict[str, int], lost: str) -> None:
    """At once, so that it does not hold its sender's connection."""
    bench = Bench(**bounds)
    names = (("s1", 1_000), ("s2", 1_000), ("l", 24_000), ("s3", 1_000))
    tasks = {name: bench.add(name, size=size) for name, size in names}
    async with asyncio.timeout(15):
        with pytest.raises(NoTurn, match="too much"):
            await tasks.pop(lost)
    bench.gate.set()
    await asyncio.gather(bench.first, *tasks.values())
    assert sorted(bench.done) == sorted(["first", *tasks])


async def test_what_matters_keeps_its_place() -> None:
    """However many of the rest come after it."""
    bench = Bench(most_waiting=2, most_bytes=10**9)
    first = bench.add("matters", rank=0, size=300_000)
    rest = [bench.add("rest", rank=1) for _ in range(10)]
    await asyncio.sleep(0)
    bench.gate.set()
    await asyncio.gather(bench.first, first)
    ends = await asyncio.gather(*rest, return_exceptions=True)
    assert (bench.done[1], ends.count(None)) == ("matters", 1)


async def test_one_larger_than_all_that_may_wait_is_heard_when_it_is_alone() -> None:
    """The bound is there for many."""
    bench = Bench(most_bytes=5)
    huge = bench.add("huge", size=100)
    await asyncio.sleep(0)
    bench.gate.set()
    await asyncio.gather(bench.first, huge)
    assert bench.done == ["first", "huge"]


async def test_a_wait_that_ends_leaves_no_hole() -> None:
    """By time or by cancellation: whoever is next has his turn."""
    bench = Bench()
    until = asyncio.get_running_loop().time() + 0.05
    await asyncio.sleep(0)
    with pytest.raises(NoTurn, match="in time"):
        await bench.turns.run(lambda: None, rank=0, size=1, until=until)
    left, last = bench.add("left"), bench.add("last")
    await asyncio.sleep(0)
    left.cancel()
    bench.gate.set()
    await asyncio.gather(bench.first, last)
    assert bench.done == ["first", "last"]


async def test_a_turn_that_comes_as_its_wait_ends_goes_to_the_next() -> None:
    """Else nobody would ever have one again."""
    bench = Bench()
    left, last = bench.add("left"), bench.add("last")
    await asyncio.sleep(0)
    bench.turns._pass_on()
    left.cancel()
    async with asyncio.timeout(15):
        await last
    bench.gate.set()
    await bench.first
    assert bench.done == ["last", "first"]


async def test_work_that_lasts_too_long_keeps_its_turn() -> None:
    """Its thread cannot be ended."""
    turns, gate = Turns(most_waiting=9, most_bytes=9), threading.Event()
    now = asyncio.get_running_loop().time()
    with pytest.raises(TooHard):
        await turns.run(lambda: gate.wait(15), rank=0, size=1, until=now + 0.05)
    with pytest.raises(NoTurn):
        await turns.run(lambda: None, rank=0, size=1, until=now + 0.1)
    gate.set()
    assert await turns.run(lambda: "mine", rank=0, size=1, until=now + FOREVER) == "mine"


async def test_what_can_wait_begins_when_the_rest_is_done() -> None:
    """And goes on then, whatever comes meanwhile."""
    bench = Bench()
    behind = Turns(most_waiting=9, most_bytes=10**9, after=bench.turns)
    until = asyncio.get_running_loop().time() + FOREVER
    await asyncio.sleep(0)
    gate = threading.Event()

    def work() -> None:
        gate.wait(15)
        bench.done.append("behind")

    late = asyncio.create_task(behind.run(work, rank=0, size=1, until=until))
    second = bench.add("second")
    await asyncio.sleep(0)
    bench.gate.set()
    await asyncio.gather(bench.first, second)
    third = bench.add("third")
    await third
    gate.set()
    await late
    assert bench.done == ["first", "second", "third", "behind"]
    await behind.run(lambda: bench.done.append("free"), rank=0, size=1, until=until)
    assert bench.done[-1] == "free"


async def test_what_can_wait_is_not_begun_too_late() -> None:
    """Its wait ends in time, and leaves nothing behind."""
    bench = Bench()
    behind = Turns(most_waiting=9, most_bytes=10**9, after=bench.turns)
    await asyncio.sleep(0)
    now = asyncio.get_running_loop().time()
    with pytest.raises(NoTurn, match="in time"):
        await behind.run(lambda: None, rank=0, size=1, until=now + 0.05)
    bench.gate.set()
    await bench.first
    assert await behind.run(lambda: "free", rank=0, size=1, until=now + FOREVER) == "free"
