# SPDX-License-Identifier: Apache-2.0
"""What Lightning's lives train on: samples that are a little different each time, in each kind of loader."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Subset

from spotwatch.train import ResumableLoader
from tests.train.integrations.workers.lightning_held import held, shared


class Noisy(Dataset[Any]):
    """Samples by number, each a little different every time it is read."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, n: int) -> Any:
        return torch.tensor([n, n * n % 7, 1.0, -n]) / self.length + torch.randn(4) * 0.1, n


class Stream(IterableDataset[Any]):
    """Samples one after the other."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Any:
        for n in range(self.length):
            yield torch.tensor([n, 1.0, -1.0, n % 5]) / self.length, n


class Holed:
    """Batches of which one is none."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length // 4

    def __iter__(self) -> Any:
        for n in range(len(self)):
            yield None if n == 1 else (torch.randn(4, 4), torch.full((4,), n))


def evaluated(case: dict[str, Any], rank: int) -> Any:
    """Return what evaluations are of as the case has it."""
    if case.get("uneven"):
        # Of streams nobody knows the length, and here each rank has another.
        return Stream(8 + 12 * rank)
    return Subset(shared(24), range(12)) if case.get("loader") == "held shared" else Noisy(12)


def given(pl: Any, case: dict[str, Any], validation: Any) -> dict[str, Any]:
    """Return what a fit is given: loaders, or a module that draws its data where it makes them."""
    if "drawn" not in case:
        return {
            "train_dataloaders": loader(case),
            "val_dataloaders": None if case.get("unchecked") else validation,
        }

    class Drawn(pl.LightningDataModule):
        def train_dataloader(self) -> Any:
            return DataLoader(_drawn(24), batch_size=4, shuffle=True)

        def val_dataloader(self) -> Any:
            return DataLoader(_drawn(12), batch_size=4) if case["drawn"] == "all" else validation

    return {"datamodule": Drawn()}


def _drawn(length: int) -> Any:
    return Subset(Noisy(48), torch.randperm(48)[:length].tolist())


def _stateful(data: Any, **options: Any) -> Any:
    return importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader(data, **options)


def loader(case: dict[str, Any]) -> Any:  # noqa: C901, PLR0911, PLR0912 - one for each kind
    """Return the training data as the case has it."""
    kind, workers = case.get("loader", "plain"), case.get("workers", 0)
    samples = case.get("samples", 24)
    options: dict[str, Any] = {"batch_size": 4, "num_workers": workers}
    if workers:
        options["persistent_workers"] = case.get("persistent", False)
    if kind.startswith("held "):
        return held(kind.removeprefix("held "), samples, options)
    match kind:
        case "plain":
            return DataLoader(Noisy(samples), shuffle=True, **options)
        case "generator":
            own = torch.Generator().manual_seed(5)
            return DataLoader(Noisy(samples), sampler=RandomSampler(Noisy(samples), generator=own), **options)
        case "resumable":
            return ResumableLoader(Noisy(samples), 4, shuffle=True, seed=3, num_workers=workers)
        case "stateful":
            return _stateful(Noisy(samples), shuffle=True, **options)
        case "stream":
            return DataLoader(Stream(samples), **options)
        case "holes":
            return Holed(samples)
        case "stateful generator":
            return _stateful(
                Noisy(samples), shuffle=True, generator=torch.Generator().manual_seed(5), **options
            )
        case "stateful sampler":
            return _stateful(Noisy(samples), sampler=RandomSampler(Noisy(samples)), **options)
        case "stateful stream":
            return _stateful(Stream(samples), **options)
        case "stream and others":
            return {
                "long": DataLoader(Stream(samples), **options),
                "short": _stateful(Noisy(8), shuffle=True, **options),
                "also": ResumableLoader(Noisy(12), 4, shuffle=True, seed=3),
                "plain": DataLoader(Noisy(16), shuffle=True, **options),
            }
        case "two":
            return {
                "long": DataLoader(Noisy(samples), shuffle=True, **options),
                "short": DataLoader(Noisy(8), shuffle=True, **options),
            }
    raise AssertionError(kind)
