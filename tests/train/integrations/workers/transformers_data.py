# SPDX-License-Identifier: Apache-2.0
"""Loaders and callbacks of a program's own, with which a run could not be gone on, and what is said of them.

The checks that `transformers_checks` does with its `Bench`, as those that are in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainerCallback

from spotwatch.errors import ConfigError
from tests.train.integrations.workers.transformers_world import collate


class Wrapper:
    """Stands around a loader, as prefetchers do."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.dataset, self.batch_sampler = loader.dataset, loader.batch_sampler

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)


class DataLoaderDispatcher(Wrapper):
    """Is called as Accelerate's is, as that of ms-swift."""


class Changing(DataLoader[Any]):
    """Does something to each batch."""

    def __iter__(self) -> Any:
        return ({name: words * 1 for name, words in batch.items()} for batch in super().__iter__())


class Listed(Dataset[Any]):
    """Batches that are made already."""

    def __init__(self, loader: Any) -> None:
        self._batches = list(loader)

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Any:
        return self._batches[index]


class OwnLoader(Trainer):
    """Makes its loader by a function of the program's."""

    make: Callable[[Any], Any]

    def get_train_dataloader(self) -> Any:
        """Make it, around what would have been."""
        return type(self).make(super().get_train_dataloader())


def own_loaders(bench: Any) -> str:
    """Have loaders that cannot be gone on with, and one that nothing has prepared, which can."""
    options: dict[str, Any] = {"collate_fn": lambda rows: collate(rows, noise=False)}
    kinds: tuple[Callable[[Any], Any], ...] = (
        list,
        Wrapper,
        DataLoaderDispatcher,
        lambda loader: Changing(loader.dataset, batch_size=2, **options),
        lambda loader: DataLoader(Listed(loader), batch_size=None),
        lambda loader: DataLoader(loader.dataset, batch_size=2, shuffle=True, **options),
    )
    said: list[str] = []
    for make in kinds:
        for given in ({}, {"ignore_data_skip": True}):
            OwnLoader.make = staticmethod(make)
            try:
                bench.trainer(bench.callback(f"run-{len(said)}"), of=OwnLoader, **given).train()
                said.append("trained")
            except ConfigError as error:
                is_clear = "an interrupted epoch could not be gone on with" in str(error)
                said.append(str(error).split()[3] if is_clear else str(error))
    return " ".join(said)


class BEMACallback(TrainerCallback):
    """Is called as one of TRL's is."""


def averaged(bench: Any) -> str:
    """Have a callback that averages weights."""
    bench.trainer(bench.callback(), BEMACallback()).train()
    return "trained"


def other_data(bench: Any) -> str:
    """Go on with more or fewer sentences: within an epoch of 11 batches, and after it."""
    said: list[str] = []
    for steps, count, given in (
        *((4, 24, {}), (4, 21, {}), (4, 24, {"ignore_data_skip": True}), (4, 22, {"max_steps": 14})),
        *((4, 24, {"max_steps": 4}), (11, 24, {"max_steps": 13})),
    ):
        run_id = f"run-{len(said)}"
        bench.trainer(bench.callback(run_id), max_steps=steps).train()
        try:
            trainer = bench.trainer(bench.callback(run_id), count=count, **({"max_steps": 8} | given))
            said.append(str(trainer.train().global_step))
        except ConfigError as error:
            said.append(
                re.sub(r"^the run .* (\d+ batches of \d+).* (\d+ of \d+) now.*", r"\1, \2", str(error))
            )
    return "; ".join(said)
