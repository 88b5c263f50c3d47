# SPDX-License-Identifier: Apache-2.0
"""A run of several ranks, played by threads that meet at a barrier: real rounds, without processes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import TypeVar

from spotwatch.errors import RankGone
from spotwatch.model import JSON
from spotwatch.train.world import Alone

T = TypeVar("T")

_SECONDS = 15.0


class Table:
    """Where the ranks of a run meet; one thread of each.

    Args:
        size: how many ranks.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._rows = [""] * size
        self._barrier = threading.Barrier(size)

    def meet(self, rank: int, value: JSON) -> list[JSON]:
        """Return every rank's value; a rank that never comes is a rank that has gone."""
        self._rows[rank] = json.dumps(value)
        try:
            self._barrier.wait(_SECONDS)
            rows = [json.loads(row) for row in self._rows]
            self._barrier.wait(_SECONDS)
        except threading.BrokenBarrierError:
            raise RankGone("a rank has gone") from None
        return rows

    def leave(self) -> None:
        """Be left by a rank."""
        self._barrier.abort()


class Seat(Alone):
    """One rank's view of a run.

    Args:
        rank: which.
        front: where the training threads meet.
        behind: where the saving threads meet.
    """

    def __init__(self, rank: int, front: Table, behind: Table) -> None:
        self.rank = rank
        self.size = front.size
        self.is_first = rank == 0
        self.speaks = rank == 0
        self.rounds = 0
        self._front = front
        self._behind = behind

    def everyone(self, value: JSON) -> list[JSON]:
        """Return every rank's value."""
        self.rounds += 1
        return self._front.meet(self.rank, value)

    def everyone_behind(self, value: JSON) -> list[JSON]:
        """Return every rank's value, in the saving threads."""
        return self._behind.meet(self.rank, value)

    def greatest(self, values: list[int]) -> list[int]:
        """Return the greatest of each integer."""
        rows: list[list[int]] = self.everyone(list(values))  # type: ignore[assignment]  # what all have sent
        return [max(column) for column in zip(*rows, strict=True)]

    def leave(self) -> None:
        """Be gone, as a rank that was killed."""
        self._front.leave()
        self._behind.leave()


def play(size: int, act: Callable[[Seat], T]) -> list[T | Exception]:
    """Let each rank act in a thread of its own, and return what each returned or raised.

    That all of them met the same number of times is checked: else some would have waited for ever.
    """
    front, behind = Table(size), Table(size)
    seats = [Seat(rank, front, behind) for rank in range(size)]
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
