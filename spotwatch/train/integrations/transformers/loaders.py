# SPDX-License-Identifier: Apache-2.0
"""What a loader of torch's or Accelerate's is made of, as far as it concerns going on in it.

It reads nothing of the data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def no_seed_twice(base: Any) -> Iterator[None]:
    """Have workers that stay over epochs draw no seed from the global state when they are started again.

    They are given one when they are started: once in a run, but also in each of its later lives.
    """
    if not base.persistent_workers or getattr(base, "_iterator", None) is not None:
        yield
        return
    import torch  # noqa: PLC0415 - only a trainer has it

    own, base.generator = base.generator, torch.Generator()
    try:
        yield
    finally:
        base.generator = own


def skipping(source: Any) -> Any:
    """Return the sampler that passes over batches in what `skip_first_batches` returned; None without one."""
    samplers = (source.batch_sampler, source.sampler)
    return next((one for one in samplers if type(one).__name__ == "SkipBatchSampler"), None)


def is_stream(loader: Any) -> bool:
    """Tell whether it reads an IterableDataset, which has no order to pass over by number."""
    from torch.utils.data import IterableDataset  # noqa: PLC0415 - only a trainer has it

    return isinstance(loader.dataset, IterableDataset)


def length(loader: Any) -> list[int | None]:
    """Return how many batches and samples it has; None where it does not know."""
    from transformers.trainer_utils import has_length  # noqa: PLC0415 - a Trainer's loader is here

    things: list[Any] = [loader, getattr(loader, "dataset", None)]
    return [len(one) if has_length(one) else None for one in things]


def made_for_each(loader: Any) -> int:
    """Return how many batches this process makes for each that it trains."""
    if type(loader).__name__ != "DataLoaderDispatcher" or loader.split_batches:
        return 1
    return int(loader.state.num_processes) if loader.state.process_index == 0 else 0


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell the loader, and samplers that it does not reach, as the Trainer does at each epoch."""
    below = getattr(getattr(loader, "batch_sampler", None), "batch_sampler", None)
    for thing in (loader, below):
        if thing is not None and hasattr(thing, "set_epoch"):
            thing.set_epoch(epoch)
