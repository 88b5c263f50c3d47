# SPDX-License-Identifier: Apache-2.0
"""Data with a random state or a count of its own, as programs make it, for whole lives of a Trainer.

`make_held` makes the Trainer of one kind; what becomes of it is the worker's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models
from torch.utils.data import DataLoader, Sampler, WeightedRandomSampler
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast, TrainingArguments

from tests.train.integrations.workers.transformers_world import Noted, Rows, Stream, collate

_COUNT = 22


class Drawing(Rows):
    """Sentences, a word of each drawn when it is read: by numpy's generator, and by one that is made late."""

    def __init__(self, count: int) -> None:
        super().__init__(count, noise=False)
        self._place = np.random.default_rng(3)
        self._word: random.Random | None = None

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one."""
        if self._word is None:
            self._word = random.Random(4)
        row = super().__getitem__(index)
        row["input_ids"][int(self._place.integers(8))] = self._word.randrange(30)
        return row


class Counting(Sampler[int]):
    """Shuffles by the number of the pass, which it counts itself."""

    def __init__(self, count: int) -> None:
        self._count, self._passes = count, 0

    def __len__(self) -> int:
        """Return how many samples."""
        return self._count

    def __iter__(self) -> Iterator[int]:
        """Yield all."""
        order = list(range(self._count))
        random.Random(self._passes).shuffle(order)
        self._passes += 1
        return iter(order)


class Told(Counting):
    """Shuffles by the number of the epoch that it is told."""

    def set_epoch(self, epoch: int) -> None:
        """Be told it."""
        self._passes = 2 * epoch


class CountingStream(Stream):
    """Shuffles likewise, and draws by the generator that it is given."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._passes = 0

    def __iter__(self) -> Iterator[Any]:
        """Yield all."""
        order = list(self._rows)
        random.Random(self._passes).shuffle(order)
        self._passes += 1
        yield from order


class OwnOrder(Noted):
    """Takes its samples in an order of the program's."""

    order: Any = None
    generator: Any = None

    def _get_train_sampler(self, *args: Any) -> Any:
        return super()._get_train_sampler(*args) if self.order is None else self.order

    def get_train_dataloader(self) -> Any:
        """Return the Trainer's, or one with a generator, which nothing has prepared."""
        if self.generator is None:
            return super().get_train_dataloader()
        return DataLoader(
            *(self.train_dataset, 2), shuffle=True, collate_fn=self.data_collator, generator=self.generator
        )


def make_held(kind: str, model: Any, given: dict[str, Any], callbacks: list[Any]) -> Any:
    """Make the Trainer: `loader`, `weighted`, `counting`, `told`, `stream` or `masked`."""
    data: Any = CountingStream(_COUNT) if kind == "stream" else Drawing(_COUNT)
    trainer = OwnOrder(
        model,
        TrainingArguments(**given),
        data_collator=_masking() if kind == "masked" else partial(collate, noise=False),
        train_dataset=data,
        eval_dataset=Drawing(6),
        callbacks=callbacks,
    )
    if kind == "loader":
        trainer.generator = torch.Generator().manual_seed(4)
    elif kind == "weighted":
        weights = [1.0 + number % 3 for number in range(_COUNT)]
        trainer.order = WeightedRandomSampler(weights, _COUNT, generator=torch.Generator().manual_seed(4))
    elif kind in ("counting", "told"):
        trainer.order = (Told if kind == "told" else Counting)(_COUNT)
    return trainer


def _masking() -> DataCollatorForLanguageModeling:
    words = {f"w{number}": number for number in range(30)} | {"<mask>": 30, "<pad>": 31}
    made = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, mask_token="<mask>", pad_token="<pad>")
    return DataCollatorForLanguageModeling(tokenizer, seed=3)
