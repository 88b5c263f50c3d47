# SPDX-License-Identifier: Apache-2.0
"""A model with tied weights and a trainer of it, and what is captured of their state."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from spotwatch.train.parts import Held
from spotwatch.train.state.state import Snapshot, State

torch = pytest.importorskip("torch")


nn = torch.nn


class Tied(nn.Module):  # type: ignore[misc, name-defined]  # torch is imported through pytest
    """A model whose first and last layer are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Any) -> Any:
        """Return logits, with dropout."""
        return self.head(nn.functional.dropout(self.norm(self.embed(x)), 0.2))


class Trainer:
    """Everything that training moves: weights, momenta, a schedule, and generators of three kinds."""

    def __init__(self, optimizer: str = "AdamW") -> None:
        torch.manual_seed(1)
        self.model = Tied()
        options = {"momentum": 0.9} if optimizer == "SGD" else {}
        self.optimizer = getattr(torch.optim, optimizer)(self.model.parameters(), lr=0.1, **options)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 5])
        self.generator = np.random.default_rng(5)
        self.state = State()
        self.state.track(
            {
                "model": self.model,
                "optimizer": self.optimizer,
                "scheduler": self.scheduler,
                "generator": self.generator,
                "chance": torch.Generator().manual_seed(4),
                "scaler": None,
            }
        )

    def step(self) -> float:
        """Train one step and return its loss."""
        numbers = (self.generator.integers(0, 7, 8) + random.randrange(7)) % 7
        loss = self.model(torch.as_tensor(numbers)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()  # type: ignore[no-any-return]  # torch is imported through pytest


def held(snapshot: Snapshot) -> Held:
    """Return the body of a capture that is a copy."""
    assert isinstance(snapshot.body, Held)
    return snapshot.body


def captured(state: State) -> tuple[bytearray, Any]:
    """Return a copy of a capture, as a download would be."""
    snapshot = state.capture()
    return bytearray(held(snapshot).view), snapshot.state
