# SPDX-License-Identifier: Apache-2.0
"""Lives of a loop with Accelerate in the test's own process, and every batch that they have trained on."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader, Dataset, IterableDataset

from spotwatch.train import Checkpointer
from spotwatch.train.integrations.accelerate import SpotwatchRun

from .accelerate_world import forget


class Numbers(Dataset[torch.Tensor]):
    """As many numbers, each a sample."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        """Return how many there are."""
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return one, with chance."""
        return torch.tensor([float(index)]) + torch.rand(()) / 2


class Told(IterableDataset[torch.Tensor]):
    """A stream in an order of the epoch that it is told."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Take the epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[torch.Tensor]:
        generator = torch.Generator().manual_seed(self.epoch)
        for number in torch.randperm(self.length, generator=generator).tolist():
            yield torch.tensor([float(number)])


class Counting(IterableDataset[torch.Tensor]):
    """A stream that counts samples and epochs itself."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.at = self.epoch = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        generator = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(self.length, generator=generator).tolist()
        while self.at < self.length:
            self.at += 1
            yield torch.tensor([float(order[self.at - 1])])
        self.at = 0
        self.epoch += 1

    def state_dict(self) -> dict[str, int]:
        """Return both counts."""
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take them back."""
        self.at, self.epoch = state["at"], state["epoch"]


class Loop:
    """A training loop of one life, as a user writes it.

    Args:
        base: where the run is stored.
        environ: leads to the daemon.
        loaders: its loaders.
        life: which one it is; it seeds chance, which a life goes on with only until it has resumed.
        stop_at: the batch of this life, from 1, that a signal comes in; 0: none does.
        options: of `DataLoaderConfiguration`.
    """

    def __init__(
        self,
        base: Path,
        environ: dict[str, str],
        *loaders: DataLoader[torch.Tensor],
        life: int = 0,
        stop_at: int = 0,
        **options: Any,
    ) -> None:
        forget()
        torch.manual_seed(life)
        self.accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        self.model, self.optimizer, *self.loaders = self.accelerator.prepare(model, optimizer, *loaders)
        self.ck = Checkpointer(base / "store", run_id="run", environ=environ, patience_seconds=0.0)
        self.run = SpotwatchRun(self.ck, self.accelerator)
        self.trained: list[list[float]] = []
        self.number = life
        self._stop_at = stop_at

    def train(self, *batches: torch.Tensor) -> None:
        """Take one batch of each loader, and count the step."""
        self.accelerator.backward(self.model(batches[0]).sum())
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.trained.append([number for batch in batches for number in batch.flatten().tolist()])
        self.tell()
        self.run.step()

    def tell(self) -> None:
        """Send the signal, if it is to come in this batch."""
        if len(self.trained) == self._stop_at:
            signal.raise_signal(signal.SIGTERM)

    def epochs(self, until: int = 3) -> None:
        """Train as the page says."""
        with self.run:
            for _ in range(self.loaders[0].iteration, until):
                for batch in self.loaders[0]:
                    self.train(batch)


def lived(
    base: Path,
    environ: dict[str, str],
    make: Callable[[int], Iterable[DataLoader[torch.Tensor]]],
    loop: Callable[[Loop], object],
    stops: Iterable[int] = (),
    **options: Any,
) -> list[list[float]]:
    """Live so many lives, told at these batches, and a last one; return all that they have trained on.

    Args:
        base: where the run is stored.
        environ: leads to the daemon.
        make: makes the loaders of a life, from its number.
        loop: what a life does.
        stops: the batch of its life that each signal comes in, from 1; -1: that life ends by itself.
        options: of `DataLoaderConfiguration`.
    """
    trained: list[list[float]] = []
    for number, stop_at in enumerate((*stops, 0)):
        life = Loop(base, environ, *make(number), life=number, stop_at=stop_at, **options)
        with suppress(SystemExit):
            loop(life)
        assert life.ck.exit_code == (75 if stop_at > 0 else 0)
        trained += life.trained
    return trained
