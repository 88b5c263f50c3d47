# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is: one piece of work at a time in a thread, what matters first, then the cheapest.

It does not know what the work is. What waits is bounded: beyond that the costliest loses its place at once.
"""

from __future__ import annotations

import asyncio
import itertools
from bisect import insort
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class NoTurn(Exception):
    """The work was not begun: its turn did not come in time, or too much was waiting."""


class TooHard(Exception):
    """The work did not end in time; its thread goes on."""


class Turns:
    """One piece of work at a time.

    Args:
        most_waiting: pieces of work.
        most_bytes: of all that wait together; one alone may be of any size.
    """

    def __init__(self, *, most_waiting: int, most_bytes: int) -> None:
        self._most_waiting = most_waiting
        self._most_bytes = most_bytes
        self._is_taken = False
        self._numbers = itertools.count()
        # Sorted; the number decides before two futures could be compared.
        self._waiting: list[tuple[int, int, int, asyncio.Future[None]]] = []

    async def run(self, work: Callable[[], T], *, rank: int, size: int, until: float) -> T:
        """Run `work` in a thread, alone; its turn lasts until it ends, whoever still waits for it.

        A thread cannot be ended: if waiting for it ended its turn, hostile mails would fill all threads.

        Args:
            work: called once, or never.
            rank: lower goes first, whatever it costs.
            size: bytes; of one rank the smaller goes first.
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
        if not self._is_taken:
            self._is_taken = True
            return
        turn = asyncio.get_running_loop().create_future()
        place = (rank, size, next(self._numbers), turn)
        insort(self._waiting, place)
        self._keep_bounds()
        try:
            async with asyncio.timeout_at(until):
                await turn
        except BaseException as error:
            if place in self._waiting:
                self._waiting.remove(place)
            elif turn.done() and not turn.cancelled() and turn.exception() is None:
                # It came in the same breath as the end of the wait.
                self._pass_on()
            if isinstance(error, TimeoutError):
                raise NoTurn("its turn did not come in time") from error
            raise

    def _keep_bounds(self) -> None:
        while len(self._waiting) > self._most_waiting or (
            len(self._waiting) > 1 and sum(size for _, size, _, _ in self._waiting) > self._most_bytes
        ):
            *_, turn = self._waiting.pop()
            if not turn.done():
                turn.set_exception(NoTurn("too much was waiting"))

    def _end(self, thread: asyncio.Task[T]) -> None:
        self._pass_on()
        if not thread.cancelled():
            # Looked at, so that asyncio does not complain when nobody waits any more.
            thread.exception()

    def _pass_on(self) -> None:
        while self._waiting:
            *_, turn = self._waiting.pop(0)
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False
