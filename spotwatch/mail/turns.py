# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is: one piece of work at a time in a thread, what matters first, then by equal shares.

Of what matters alike, small, middling and large pieces have the same share of all bytes, and those of one
kind go in the order of their coming: so any number of small ones keeps no large one waiting for long, nor the
other way round (start-time fair queueing; Goyal, Vin and Cheng, SIGCOMM 1996). What waits is bounded: beyond
that the newest of the kind of which most waits loses its place at once. It does not know what the work is.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

# Most mails are smaller than the first, and a mail with a picture is larger than the second.
_KINDS = (8 * 1024, 64 * 1024)
# What a piece costs beside its size, in bytes that take as long.
_LEAST_COST = 4096


class NoTurn(Exception):
    """The work was not begun: its turn did not come in time, or too much was waiting."""


class TooHard(Exception):
    """The work did not end in time; its thread goes on."""


@dataclass(eq=False, slots=True)
class _Place:
    """One piece of work that waits."""

    rank: int
    size: int
    number: int
    begins_at: float
    """When its turn comes, in bytes done of each kind."""
    turn: asyncio.Future[None] = field(compare=False)

    @property
    def kind(self) -> int:
        """Return which kind of size it has."""
        return sum(self.size > most for most in _KINDS)

    @property
    def ends_at(self) -> float:
        """Return when the next of its kind may begin."""
        return self.begins_at + self.size + _LEAST_COST


class Turns:
    """One piece of work at a time.

    Args:
        most_waiting: pieces of work.
        most_bytes: of all that wait together; one alone may be of any size.
        after: nothing is begun here while there is work there; what is begun goes on.
    """

    def __init__(self, *, most_waiting: int, most_bytes: int, after: Turns | None = None) -> None:
        self._most_waiting = most_waiting
        self._most_bytes = most_bytes
        self._after = after
        self._behind: list[Turns] = []
        if after is not None:
            after.let_follow(self)
        self._is_taken = False
        self._numbers = itertools.count()
        self._waiting: list[_Place] = []
        self._now = 0.0
        """The beginning of what was begun last, in bytes done of each kind."""
        self._last: dict[tuple[int, int], float] = {}
        """The end of what was begun last, of each rank and kind."""

    @property
    def is_taken(self) -> bool:
        """Tell whether work is being done here, or waits."""
        return self._is_taken

    def let_follow(self, other: Turns) -> None:
        """Resume `other` whenever all work here is done."""
        self._behind.append(other)

    def resume(self) -> None:
        """Begin what waits, if it may begin now."""
        if not self._is_taken:
            self._pass_on()

    async def run(self, work: Callable[[], T], *, rank: int, size: int, until: float) -> T:
        """Run `work` in a thread, alone; its turn lasts until it ends, whoever still waits for it.

        A thread cannot be ended: if waiting for it ended its turn, hostile mails would fill all threads.

        Args:
            work: called once, or never.
            rank: lower goes first, whatever it costs.
            size: bytes.
            until: by the loop's time.

        Raises:
            NoTurn: it was not begun.
            TooHard: it did not end until then.
        """
        await self._take(rank, size, until)
        thread = asyncio.create_task(asyncio.to_thread(work))
        thread.add_done_callback(self._end)
        try:
            async with asyncio.timeout_at(until):
                return await asyncio.shield(thread)
        except TimeoutError as error:
            raise TooHard from error

    async def _take(self, rank: int, size: int, until: float) -> None:
        place = self._place(rank, size)
        if self._is_free():
            self._begin(place)
            return
        self._waiting.append(place)
        self._keep_bounds()
        try:
            async with asyncio.timeout_at(until):
                await place.turn
        except BaseException as error:
            if place in self._waiting:
                self._waiting.remove(place)
            elif place.turn.done() and not place.turn.cancelled() and place.turn.exception() is None:
                # It came in the same breath as the end of the wait.
                self._pass_on()
            if isinstance(error, TimeoutError):
                raise NoTurn("its turn did not come in time") from error
            raise

    def _place(self, rank: int, size: int) -> _Place:
        turn = asyncio.get_running_loop().create_future()
        place = _Place(rank=rank, size=size, number=next(self._numbers), begins_at=self._now, turn=turn)
        key = (rank, place.kind)
        ends = [one.ends_at for one in self._waiting if (one.rank, one.kind) == key]
        place.begins_at = max(self._now, self._last.get(key, 0.0), *ends, 0.0)
        return place

    def _begin(self, place: _Place) -> None:
        self._is_taken = True
        self._now = place.begins_at
        self._last[(place.rank, place.kind)] = place.ends_at

    def _keep_bounds(self) -> None:
        while len(self._waiting) > self._most_waiting or (
            len(self._waiting) > 1 and sum(one.size for one in self._waiting) > self._most_bytes
        ):
            is_crowded = len(self._waiting) > self._most_waiting
            worst = max(one.rank for one in self._waiting)
            least = [one for one in self._waiting if one.rank == worst]
            shares: Counter[int] = Counter()
            for one in least:
                shares[one.kind] += 1 if is_crowded else one.size
            kind = max(shares, key=lambda each: (shares[each], each))
            loser = max((one for one in least if one.kind == kind), key=lambda one: one.number)
            self._waiting.remove(loser)
            if not loser.turn.done():
                loser.turn.set_exception(NoTurn("too much was waiting"))

    def _end(self, thread: asyncio.Task[T]) -> None:
        self._pass_on()
        if not thread.cancelled():
            # Looked at, so that asyncio does not complain when nobody waits any more.
            thread.exception()

    def _is_free(self) -> bool:
        return not self._is_taken and (self._after is None or not self._after.is_taken)

    def _pass_on(self) -> None:
        self._is_taken = False
        while self._waiting and self._is_free():
            place = min(self._waiting, key=lambda one: (one.rank, one.begins_at, one.number))
            self._waiting.remove(place)
            if not place.turn.done():
                self._begin(place)
                place.turn.set_result(None)
                return
        if not self._waiting:
            self._now = 0.0
            self._last.clear()
        for other in self._behind:
            other.resume()
