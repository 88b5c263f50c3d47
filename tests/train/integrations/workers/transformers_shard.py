# SPDX-License-Identifier: Apache-2.0
"""A Trainer as a framework has it: a kind of loader of its own, and its own way to pass over batches.

ms-swift does so (4.6: `swift/trainers/mixin.py`, `swift/dataloader/shard.py`), which is not installed here.
`make_shard` makes one for whole lives; `replaced` is a check that `transformers_checks` does with its Bench.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import torch
from accelerate.data_loader import SkipBatchSampler
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments, trainer

from spotwatch.errors import ConfigError
from tests.train.integrations.workers.transformers_world import Noting, Rows, Stream, collate

_SIZE = 2
_WORDS = 30


class Order:
    """Draws batches in an order that depends on the epoch and, with `moves`, on the passes before."""

    def __init__(self, count: int, *, moves: bool) -> None:
        self._count, self._moves = count, moves
        self._generator = torch.Generator()
        self.epoch = 0

    def __len__(self) -> int:
        """Return how many batches."""
        return math.ceil(self._count / _SIZE)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield all."""
        if not self._moves:
            self._generator.manual_seed(self.epoch)
        order = torch.randperm(self._count, generator=self._generator).tolist()
        return (order[number : number + _SIZE] for number in range(0, self._count, _SIZE))

    def set_epoch(self, epoch: int) -> None:
        """Be told it."""
        self.epoch = epoch


class Moving(DataLoader[Any]):
    """Does something to each batch, as moving it to a device; another loader would lose that."""

    epoch = 0

    def __iter__(self) -> Any:
        """Yield all."""
        for batch in super().__iter__():
            yield batch | {"input_ids": (batch["input_ids"] + 1 + self.epoch) % _WORDS}

    def set_epoch(self, epoch: int) -> None:
        """Tell the sampler, also below what passes over batches."""
        self.epoch = epoch
        below = getattr(self.batch_sampler, "batch_sampler", self.batch_sampler)
        if isinstance(below, Order):
            below.set_epoch(epoch)


class Ahead(Moving):
    """Has the next batch made before it hands one out."""

    def __iter__(self) -> Any:
        """Yield all."""
        batches = super().__iter__()
        batch = next(batches, None)
        while batch is not None:
            following = next(batches, None)
            yield batch
            batch = following


class Replaces(Trainer):
    """Puts its own function where the Trainer looks for the library's, while it trains."""

    kind: type[DataLoader[Any]] = Moving
    moves = False
    counts_each = 1
    differs: ClassVar[dict[str, Any]] = {}

    def get_train_dataloader(self, skip_batches: int = 0) -> Any:
        """Make one of its own kind, without the first batches."""
        sampler: Any = Order(len(self.train_dataset), moves=self.moves)
        if skip_batches:
            # What a framework draws here must not be missed elsewhere.
            torch.rand(1)
            sampler = SkipBatchSampler(sampler, skip_batches=skip_batches * self.counts_each)
        given = {
            "batch_sampler": sampler,
            "dataset": self.train_dataset,
            "collate_fn": self.data_collator,
            "num_workers": self.args.dataloader_num_workers,
            "persistent_workers": self.args.dataloader_persistent_workers,
        }
        return self.kind(**(given | (self.differs if skip_batches else {})))

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train."""
        before = trainer.skip_first_batches

        def skip(loader: Any, number: int = 0) -> Any:
            if type(loader) is not self.kind:
                return before(loader, number)
            return self.get_train_dataloader(skip_batches=number)

        trainer.skip_first_batches = skip
        try:
            return super().train(*args, **kwargs)
        finally:
            trainer.skip_first_batches = before


class _Noted(Noting, Replaces):
    pass


def make_shard(case: dict[str, Any], model: Any, given: dict[str, Any], callbacks: list[Any]) -> Any:
    """Make the Trainer of a case: `shard` says what is special about its loader, `moving` nothing."""
    noise = case.get("data", {}).get("noise", False)
    made = _Noted(
        model,
        TrainingArguments(**given),
        data_collator=partial(collate, noise=noise),
        train_dataset=Rows(22, noise=noise),
        eval_dataset=Rows(6, noise=noise),
        callbacks=callbacks,
    )
    made.kind, made.moves = Ahead if case["shard"] == "ahead" else Moving, case["shard"] == "drawing"
    return made


class _OtherKind(Replaces):
    def get_train_dataloader(self, skip_batches: int = 0) -> Any:
        self.kind = DataLoader if skip_batches else Moving
        return super().get_train_dataloader(skip_batches)


class _OtherSampler(Replaces):
    differs: ClassVar[dict[str, Any]] = {"batch_sampler": SkipBatchSampler([[0, 1]] * 11, skip_batches=1)}


class _Twice(Replaces):
    counts_each = 2


class _OtherCollator(Replaces):
    differs: ClassVar[dict[str, Any]] = {"collate_fn": partial(collate, noise=False)}


class _OtherData(Replaces):
    differs: ClassVar[dict[str, Any]] = {"dataset": Rows(22, noise=False)}


class _OtherGenerator(Replaces):
    differs: ClassVar[dict[str, Any]] = {"generator": torch.Generator()}


class _OtherWorkers(Replaces):
    differs: ClassVar[dict[str, Any]] = {"num_workers": 1}


class _Itself(Moving):
    def __iter__(self) -> Any:
        sampler: Any = self.batch_sampler
        return (self.collate_fn([self.dataset[number] for number in batch]) for batch in sampler)


class _ByItself(Replaces):
    kind = _Itself


class _OfStream(Replaces):
    def get_train_dataloader(self, skip_batches: int = 0) -> Any:
        del skip_batches
        return Moving(Stream(22), batch_size=_SIZE, collate_fn=self.data_collator)


def replaced(bench: Any) -> str:
    """Have functions that make the rest of a loader like it, and such that do not."""
    said: list[str] = []
    kinds: tuple[type[Trainer], ...] = (
        *(Replaces, _OtherSampler, _Twice, _OtherKind, _OtherCollator, _OtherData, _OtherGenerator),
        *(_OtherWorkers, _ByItself, _OfStream),
    )
    for of in kinds:
        try:
            bench.trainer(bench.callback(f"run-{len(said)}"), of=of).train()
            said.append("trained")
        except ConfigError as error:
            is_clear = "an interrupted epoch could not be gone on with" in str(error)
            said.append("refused" if is_clear else str(error))
    return " ".join(said)
