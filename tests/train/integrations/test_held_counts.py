# SPDX-License-Identifier: Apache-2.0
"""Numbers that a dataset counts go on in another life, but where they are of data that is not saved."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from spotwatch.train.integrations.held import Holdings

np = pytest.importorskip("numpy", reason="comes with every trainer")
pytest.importorskip("torch")

import torch  # noqa: E402 - after the skip


class _Counts:
    """A dataset that counts what it gives; nothing else in it changes."""

    def __init__(self) -> None:
        self.given = 0
        self.rows = [1, 2, 3]
        self.generator: Any = None

    def __getitem__(self, place: int) -> Any:
        self.generator = self.generator or np.random.default_rng(0)
        self.given += 1
        return self.rows[place], self.given


class _Reader(_Counts):
    """Has one shard in memory, and the number of it."""

    def __init__(self) -> None:
        super().__init__()
        self.current = -1
        self.shard: Any = None

    def __getitem__(self, place: int) -> Any:
        if self.current != place:
            self.current, self.shard = place, [place]
        return self.shard


class _Cache(_Counts):
    """Keeps what it has read, and how much that is."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, Any] = {}

    def __getitem__(self, place: int) -> Any:
        self.kept[place] = [place]
        self.given += 1
        return self.kept[place]


class _Ring(_Counts):
    """Writes into an array, at the place that it counts."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.ring = kind(8)

    def __getitem__(self, place: int) -> Any:
        self.ring[self.given] = place + 1
        self.given += 1
        return self.ring


class _Holds(_Counts):
    """Counts itself what an object that it holds has read."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = _Reader()

    def __getitem__(self, place: int) -> Any:
        self.given += 1
        return self.reader[place]


class _Passes(torch.utils.data.IterableDataset[Any]):
    """A stream whose order comes from a count of its passes."""

    def __init__(self) -> None:
        self.given = 0
        self.order = [0]

    def __iter__(self) -> Iterator[Any]:
        self.given += 1
        self.order = [self.given, *self.order]
        return iter(self.order)


def _numbers(dataset: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(dataset).items() if type(value) is int}


def _next_life(make: Any, *, reads: Any) -> tuple[Any, Any]:
    """Return a dataset as one life leaves it, and as the next one has it then."""
    was, now = make(), make()
    holdings = Holdings(SimpleNamespace(dataset=was), evaluated=None)
    before = holdings.read()
    reads(was)
    held = holdings.read(looks=False), holdings.read()
    next_holdings = Holdings(SimpleNamespace(dataset=now), evaluated=None)
    for one in (held[1], before, held[0], held[1]):
        next_holdings.put(one)
    return was, now


@pytest.mark.parametrize(
    "make",
    [_Reader, _Cache, lambda: _Ring(np.zeros), lambda: _Ring(torch.zeros), _Holds],
    ids=["reader", "cache", "array", "tensor", "holds"],
)
def test_counts_of_data_that_is_not_saved_begin_anew(make: Any) -> None:
    """A number without its data is none: an open shard, a cache, a buffer."""
    was, now = _next_life(make, reads=lambda dataset: [dataset[place] for place in (0, 2)])
    assert _numbers(was) != _numbers(make())
    assert _numbers(now) == _numbers(make())


def test_counts_beside_what_stays_go_on() -> None:
    """Also where a generator was made meanwhile."""
    was, now = _next_life(_Counts, reads=lambda dataset: [dataset[place] for place in (0, 2)])
    assert (was.given, now.given) == (2, 2)


def test_counts_of_a_stream_go_on() -> None:
    """It is read again from the beginning of an epoch, which its counts tell."""
    was, now = _next_life(_Passes, reads=list)
    assert (was.given, now.given) == (1, 1)


def test_data_that_has_changed_in_this_life_keeps_its_counts() -> None:
    """What was noted before does not undo what its data goes with."""
    dataset = _Cache()
    holdings = Holdings(SimpleNamespace(dataset=dataset), evaluated=None)
    held = holdings.read(looks=False)
    assert dataset[1]
    holdings.put(held)
    assert dataset.given == 1
