# SPDX-License-Identifier: Apache-2.0
"""A run of several ranks, played by threads that meet at a barrier: real rounds, without processes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import TypeVar

from spotwatch.errors import StoreError
from spotwatch.model import JSON
from spotwatch.train.world import Alone

T = TypeVar("T")

_SECONDS = 15.0


class Seat(Alone):
    """One rank's view of a run.

    Args:
        rank: which.
        rows: a place for each rank's value.
        barrier: of all ranks.
    """

    def __init__(self, rank: int, rows: list[str], barrier: threading.Barrier) -> None:
        self.rank = rank
        self.size = len(rows)
        self.is_first = rank == 0
        self.speaks = rank == 0
        self.rounds = 0
        self._rows = rows
        self._barrier = barrier

    def everyone(self, value: JSON) -> list[JSON]:
        """Return every rank's value; a rank that never comes is a rank that has gone."""
        self.rounds += 1
        self._rows[self.rank] = json.dumps(value)
        try:
            self._barrier.wait(_SECONDS)
            rows = [json.loads(row) for row in self._rows]
            self._barrier.wait(_SECONDS)
        except threading.BrokenBarrierError:
            raise StoreError("a rank has gone") from None
        return rows

    def leave(self) -> None:
        """Be gone, as a rank that was killed."""
        self._barrier.abort()


def play(size: int, act: Callable[[Seat], T]) -> list[T | Exception]:
    """Let each rank act in a thread of its own, and return what each returned or raised.

    That all of them met the same number of times is checked: else some would have waited for ever.
    """
    rows, barrier = [""] * size, threading.Barrier(size)
    seats = [Seat(rank, rows, barrier) for rank in range(size)]
    results: list[T | Exception] = [AssertionError("never ended")] * size

    def run(seat: Seat) -> None:
        try:
            results[seat.rank] = act(seat)
        except Exception as error:  # noqa: BLE001 - looked at by the test
            results[seat.rank] = error

    threads = [threading.Thread(target=run, args=(seat,), daemon=True) for seat in seats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * _SECONDS)
    assert len({seat.rounds for seat in seats}) == 1, [seat.rounds for seat in seats]
    return results
