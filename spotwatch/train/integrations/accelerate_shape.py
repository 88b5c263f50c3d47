# SPDX-License-Identifier: Apache-2.0
"""How many samples and batches a prepared loader has, and where one of another shape takes up an epoch.

It reads no sample.
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate.data_loader import (
    BatchSamplerShard,
    DataLoaderDispatcher,
    IterableDatasetShard,
    SkipBatchSampler,
)
from torch.utils.data import IterableDataset

from spotwatch.train.integrations.lengths import length_of

Shape = dict[str, Any]


def processes() -> int:
    """Return how many there are."""
    from accelerate import PartialState  # noqa: PLC0415 - made by the Accelerator, whose number it is

    return int(PartialState().num_processes)


def is_stream(base: Any) -> bool:
    """Tell whether a loader has no batches that could be left out by number."""
    return isinstance(base.dataset, IterableDataset) or (base.batch_sampler is None and not _batches(base))


def dataset_of(base: Any) -> Any:
    """Return what the program has made, without what Accelerate puts around it."""
    dataset = base.dataset
    return dataset.dataset if isinstance(dataset, IterableDatasetShard) else dataset


def shape_of(loader: Any, base: Any) -> Shape:
    """Return the shape of a loader, in plain values.

    `a_batch` is how many samples all processes take together with one batch of the loop; None: a place in its
    order cannot be told by it.
    """
    return {
        "length": None if is_stream(base) else len(loader),
        "samples": length_of(dataset_of(base)),
        "a_batch": _of_stream(loader, base) if is_stream(base) else _of_batches(loader, base),
        "world_size": processes(),
    }


def taken_up(before: Shape, now: Shape, batches: int, *, converts: bool) -> int:
    """Return how many batches of this loader are what `batches` were of the one before.

    Args:
        before: its shape.
        now: the shape of this one.
        batches: that the loop had taken of an epoch.
        converts: whether the epoch is taken up by its order alone.

    Raises:
        ValueError: it cannot be taken up by this one.
    """
    is_same_world = before["world_size"] == now["world_size"]
    if is_same_world and before["length"] != now["length"]:
        raise ValueError(
            f"its epoch had {before['length']} batches, and this loader has {now['length']}: make it of "
            f"the same dataset with the same batch_size"
        )
    if before["samples"] != now["samples"]:
        raise ValueError(
            f"its dataset had {before['samples']} samples, and this one has {now['samples']}: end the epoch "
            f"with the same dataset, and change it between epochs"
        )
    if is_same_world and before["a_batch"] == now["a_batch"]:
        return batches
    if is_same_world and now["length"] is not None:
        raise ValueError(
            f"its batches had {before['a_batch']} samples on all processes together, and this loader's have "
            f"{now['a_batch']}: make it with the same batch_size"
        )
    ways = (before["a_batch"], now["a_batch"])
    if converts and None not in ways:
        whole, rest = divmod(batches * ways[0], ways[1])
        if not rest:
            return int(whole)
    raise ValueError(
        f"{before['world_size']} processes had taken {batches} batches each, of {ways[0] or '?'} samples "
        f"together, which {now['world_size']} with {ways[1] or '?'} samples together cannot take up; resume "
        f"on {before['world_size']} processes with the same batch_size"
    )


def _of_batches(loader: Any, base: Any) -> int:
    sampler = base.sampler if _batches(base) else base.batch_sampler
    size = getattr(sampler, "batch_size", None) or 1
    if isinstance(loader, DataLoaderDispatcher):
        return int(size if loader.split_batches else size * processes())
    shares = sampler.num_processes if isinstance(sampler, BatchSamplerShard) else 1
    return int(size if getattr(sampler, "split_batches", False) else size * shares)


def _of_stream(loader: Any, base: Any) -> int | None:
    if base.num_workers > 1:  # their turns depend on the size of a batch
        return None
    dataset, size = base.dataset, base.batch_size or 1
    if isinstance(dataset, IterableDatasetShard):
        own = dataset.dataset
        if hasattr(own, "generator") and not hasattr(own, "set_epoch"):
            return None  # Accelerate seeds it by the epoch there, and nowhere else
        return int(dataset.batch_size * (1 if dataset.split_batches else dataset.num_processes))
    if isinstance(loader, DataLoaderDispatcher):
        return int(size if loader.split_batches else size * processes())
    return None if processes() > 1 else int(size)  # there each process has shards of its own


def _batches(base: Any) -> bool:
    return isinstance(base.sampler, BatchSamplerShard | SkipBatchSampler | torch.utils.data.BatchSampler)
