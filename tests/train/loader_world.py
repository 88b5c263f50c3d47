# SPDX-License-Identifier: Apache-2.0
"""Samples with luck in them, a loader of them, and a trainer that goes on where a loader was."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from spotwatch.train.loaders import ResumableLoader
from spotwatch.train.parts import Held
from spotwatch.train.state.state import State

torch = pytest.importorskip("torch")


class Noisy:
    """Samples with every kind of luck in them, as augmentation brings it; keeps what was read here."""

    def __init__(self, length: int = 22) -> None:
        self.length = length
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Any:
        self.read.append(number)
        luck = random.random() + np.random.rand() + float(torch.rand(()))  # noqa: NPY002 - what trainers use
        return torch.tensor([float(number), luck, 1.0])


class Plain(Noisy):
    """Samples that are their numbers."""

    def __getitem__(self, number: int) -> int:
        self.read.append(number)
        return number


class Trainer:
    """A model with dropout, trained from a loader without an end."""

    def __init__(self, loader: Any) -> None:
        torch.manual_seed(3)
        random.seed(3)
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.loader = loader
        self.state = State()
        self.state.track({"model": self.model, "optimizer": self.optimizer, "loader": loader})
        self.batches: Iterator[Any] | None = None

    def losses(self, count: int) -> list[float]:
        """Train so many steps and return the loss of each."""
        if self.batches is None:
            self.batches = forever(self.loader)
        return [self._step(batch) for batch in itertools.islice(self.batches, count)]

    def _step(self, batch: Any) -> float:
        loss = self.model(batch).square().mean() + random.random()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def captured(self) -> tuple[bytearray, Any]:
        """Return a copy of the state."""
        snapshot = self.state.capture()
        assert isinstance(snapshot.body, Held)
        return bytearray(snapshot.body.view), snapshot.state

    def resumed(self, saved: tuple[bytearray, Any]) -> Trainer:
        """Return this trainer, put back."""
        self.state.capture()  # as Checkpointer.resume does, to learn early what cannot be saved
        self.state.restore(*saved)
        return self


def forever(loader: Any) -> Iterator[Any]:
    """Yield batches of one epoch after the other."""
    while True:
        yield from loader


def make_loader(workers: int, **options: Any) -> ResumableLoader:
    """Return a loader of 22 shuffled samples in batches of four."""
    return ResumableLoader(Noisy(), 4, shuffle=True, seed=7, num_workers=workers, **options)
