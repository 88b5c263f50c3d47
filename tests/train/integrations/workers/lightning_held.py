# SPDX-License-Identifier: Apache-2.0
"""Loaders with a random state or a count of their own, as programs make them, for Lightning's lives."""

from __future__ import annotations

import functools
import importlib
import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    WeightedRandomSampler,
)


class Drawing(Dataset[Any]):
    """Samples that are drawn as they are read: by numpy's generator, and by one that is made late."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._noise = np.random.RandomState(3)
        self._late: random.Random | None = None
        self._names: list[int] = []
        self._is_open = False

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, n: int) -> Any:
        if self._late is None:
            self._late = random.Random(4)
        if not self._is_open:
            # As programs do with what no other process can use: a file, a connection.
            self._names, self._is_open = list(range(self.length)), True
        noise = torch.tensor([self._noise.rand(), self._late.random(), 1.0, -n / self.length])
        return noise.float(), self._names[n]


class Counting(Sampler[int]):
    """Shuffles by the number of the pass, which it counts itself."""

    def __init__(self, length: int) -> None:
        self.length, self._passes = length, 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        self._passes += 1
        order = list(range(self.length))
        random.Random(self._passes).shuffle(order)
        return iter(order)


class Told(Counting):
    """Counts on from the number of the epoch that it is told, and keeps that to itself."""

    def set_epoch(self, epoch: int) -> None:
        """Be told it."""
        self._passes = 7 * epoch


class Passing(DataLoader[Any]):
    """Shuffles by the number of the pass, which the loader counts."""

    passes = 0

    def __iter__(self) -> Any:
        self.passes += 1
        self.generator.manual_seed(self.passes)
        return super().__iter__()


class Batching(Sampler[Any]):
    """Makes batches of what another sampler yields, in a way that has no state to be asked for."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner) // 4

    def __iter__(self) -> Iterator[list[int]]:
        samples = iter(self._inner)
        return ([next(samples) for _ in range(4)] for _ in range(len(self)))


class Episodes(Sampler[Any]):
    """Draws each batch by the global generators, with replacement; or the order by no seed at all."""

    def __init__(self, length: int, kind: str) -> None:
        self.length, self._kind = length, kind

    def __len__(self) -> int:
        return self.length // 4

    def __iter__(self) -> Iterator[list[int]]:
        left = list(range(self.length))
        if self._kind == "unseeded":
            random.SystemRandom().shuffle(left)
        if "BROKEN" in os.environ:
            raise ValueError("no sample is left")
        for number in range(len(self)):
            if self._kind == "unseeded":
                yield left[4 * number : 4 * number + 4]
            else:
                yield torch.randint(0, self.length, (4,)).tolist()


class Streaming(IterableDataset[Any]):
    """Yields in an order by its own generator, and counts its passes."""

    def __init__(self, length: int) -> None:
        self.length, self._passes = length, 0
        self._order = np.random.default_rng(3)

    def __iter__(self) -> Iterator[Any]:
        self._passes += 1
        for n in self._order.permutation(self.length).tolist():
            yield torch.tensor([n, self._passes, -1.0, self._order.random()]).float() / self.length, n


class Own:
    """No DataLoader: batches in an order by a generator and a count of its own."""

    def __init__(self, length: int) -> None:
        self.length, self._passes = length, 0
        self._draws = torch.Generator().manual_seed(6)

    def __len__(self) -> int:
        return self.length // 4

    def __iter__(self) -> Iterator[Any]:
        self._passes += 1
        order: Any = torch.randperm(self.length, generator=self._draws)
        for n in order.split(4):
            yield torch.randn(4, 4, generator=self._draws) + self._passes, n


@functools.cache
def shared(length: int) -> Drawing:
    """Return samples that training and evaluations of one process draw from alike."""
    return Drawing(length)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def held(kind: str, samples: int, options: dict[str, Any]) -> Any:  # noqa: C901, PLR0911 - one for each kind
    """Return the loader of one kind."""
    data = Drawing(samples)
    unbatched = {name: value for name, value in options.items() if name != "batch_size"}
    match kind:
        case "drawing":
            return DataLoader(data, shuffle=True, **options)
        case "shared":
            return DataLoader(Subset(shared(samples), range(samples)), shuffle=True, **options)
        case "counting" | "told":
            own = Counting(samples) if kind == "counting" else Told(samples)
            return DataLoader(data, sampler=own, **options)
        case "passing":
            return Passing(data, shuffle=True, generator=_generator(), **options)
        case "weighted":
            weights = [1.0 + n % 3 for n in range(samples)]
            sampler = WeightedRandomSampler(weights, samples, generator=_generator())
            return DataLoader(data, sampler=sampler, **options)
        case "batching":
            batches: Any = Batching(RandomSampler(data, generator=_generator()))
            return DataLoader(data, batch_sampler=batches, **unbatched)
        case "stateful batching":
            made = importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader
            batches = Batching(RandomSampler(data, generator=_generator()))
            return made(data, batch_sampler=batches, **unbatched)
        case "split":
            numbers = range(2 * samples)
            order = random.Random(int(os.environ.get("ORDER", "0"))).sample(numbers, samples)
            return DataLoader(Subset(Drawing(2 * samples), order), shuffle=True, **options)
        case "seeded":
            batches = Batching(DistributedSampler(data, 1, 0, seed=int(os.environ.get("ORDER", "0"))))
            return DataLoader(data, batch_sampler=batches, **unbatched)
        case "episodes" | "unseeded":
            return DataLoader(data, batch_sampler=Episodes(samples, kind), **unbatched)
        case "streaming":
            return DataLoader(Streaming(samples), **options)
        case "own":
            return Own(samples)
    raise AssertionError(kind)
