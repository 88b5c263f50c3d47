# SPDX-License-Identifier: Apache-2.0
"""A program with Accelerate that is about to train, in the test's own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch.utils.data import DataLoader, TensorDataset

from spotwatch.train import Checkpointer


def forget() -> None:
    """Let the next Accelerator know of no other, as in a process of its own."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


class Program:
    """A model and its loader, prepared.

    Args:
        base: where the run is stored.
        environ: leads to the daemon.
        length: how many samples the loader has, in batches of two.
        options: of the Accelerator.
    """

    def __init__(self, base: Path, environ: dict[str, str], length: int = 8, **options: Any) -> None:
        self.accelerator = Accelerator(cpu=True, **options)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.ones(length, 2)), batch_size=2)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        self.ck = Checkpointer(base / "store", run_id="run", environ=environ, patience_seconds=0.0)

    def train(self, batch: Any) -> None:
        """Take one batch."""
        with self.accelerator.accumulate(self.model):
            self.accelerator.backward(self.model(batch).sum())
            self.optimizer.step()
            self.optimizer.zero_grad()
