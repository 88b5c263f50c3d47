# SPDX-License-Identifier: Apache-2.0
"""What a training program with Accelerate is made of, the same in each life: data with chance, and a model.

How it trains is in `accelerate_run`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, DataLoaderConfiguration, FullyShardedDataParallelPlugin
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler

from tests.train.integrations.workers.shard_on_cpus import shard_on_cpus


class Points(Dataset[torch.Tensor]):
    """Samples that are transformed by chance of all three libraries, if `chance`."""

    def __init__(self, length: int, *, chance: bool) -> None:
        self.length = length
        self.chance = chance

    def __len__(self) -> int:
        """Return how many there are."""
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return one."""
        point = torch.full((3,), float(index))
        if self.chance:
            # The second of two normal numbers leaves no trace in the words of numpy's generator.
            noise = [random.random(), float(np.random.randn()), float(torch.rand(()))]  # noqa: NPY002 - as people write
            point += torch.tensor(noise)
        return point


class Stream(IterableDataset[torch.Tensor]):
    """Samples one after the other, in an order of its own generator."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.generator = torch.Generator().manual_seed(5)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in torch.randperm(self.length, generator=self.generator).tolist():
            yield torch.full((3,), float(number))


class Keeping(Stream):
    """A stream that knows where it is."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.at = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = torch.randperm(self.length, generator=self.generator).tolist()
        while self.at < len(order):
            self.at += 1
            yield torch.full((3,), float(order[self.at - 1]))
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        """Return the number of the next sample."""
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take it back."""
        self.at = state["at"]


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
            yield torch.full((3,), float(number))


class Tally:
    """What a program registers for checkpointing."""

    def __init__(self) -> None:
        self.seen = 0

    def state_dict(self) -> dict[str, int]:
        """Return the count."""
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take it back."""
        self.seen = state["seen"]


def accelerator(case: dict[str, Any], seed: int) -> Accelerator:
    """Make the Accelerator of a case; what a life goes on with must not depend on its seed."""
    torch.manual_seed(seed)
    random.seed(seed + 1)
    np.random.seed(seed + 2)  # noqa: NPY002 - as people write
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap")
    if case.get("fsdp"):
        shard_on_cpus()
    return Accelerator(
        cpu=True,
        gradient_accumulation_steps=case.get("accumulation", 1),
        dataloader_config=DataLoaderConfiguration(**case.get("loader", {})),
        **({"fsdp_plugin": plugin} if case.get("fsdp") else {}),
    )


def model() -> torch.nn.Module:
    """Make a model that draws chance, and whose batches leave a trace."""
    return torch.nn.Sequential(
        torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
    )


def loader(case: dict[str, Any]) -> Any:
    """Make the loader of a case."""
    length, chance = case.get("length", 38), case.get("chance", True)
    options: dict[str, Any] = {"batch_size": 4, "num_workers": case.get("workers", 0)}
    options["persistent_workers"] = case.get("persistent", False)
    kind = case.get("data", "shuffled")
    if kind == "stream":
        return DataLoader(Stream(length), **options)
    if kind == "told":
        return DataLoader(Told(length), **options)
    if kind == "keeping":
        return DataLoader(Keeping(length), **options)
    points = Points(length, chance=chance)
    if kind == "weighted":
        weights = [1.0 + number % 5 for number in range(length)]
        return DataLoader(points, sampler=WeightedRandomSampler(weights, length), **options)
    if kind == "generator":
        options["generator"] = torch.Generator().manual_seed(9)
    return DataLoader(points, shuffle=True, **options)


def evaluation(case: dict[str, Any]) -> Any:
    """Make the loader of the evaluation, which draws chance too; persistent workers draw none."""
    if case.get("evaluation_persists"):
        return DataLoader(Points(17, chance=False), batch_size=4, num_workers=1, persistent_workers=True)
    return DataLoader(Points(17, chance=True), batch_size=4)
