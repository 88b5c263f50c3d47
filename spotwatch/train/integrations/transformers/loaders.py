# SPDX-License-Identifier: Apache-2.0
"""What a loader is made of, torch's, Accelerate's or a framework's, as far as it concerns going on in it.

It reads nothing of the data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from spotwatch.train.integrations.transformers import chance
from spotwatch.train.integrations.workers import shield

_DISPATCHER = "accelerate.data_loader.DataLoaderDispatcher"


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


def rest(loader: Any, number: int) -> Any:
    """Return a loader of what comes after so many batches, made as the Trainer has it made; nothing is drawn.

    A framework that has its own kind of loader puts its own function where the Trainer looks for this.
    """
    from transformers import trainer  # noqa: PLC0415 - a Trainer's loader is here

    before = chance.capture()
    try:
        made = trainer.skip_first_batches(loader, number)
    finally:
        chance.restore(before)
    shield(made)
    return made


def is_of_librarys_kind(loader: Any) -> bool:
    """Tell whether this DataLoader goes through its batches as torch or Accelerate does."""
    return type(loader).__iter__.__module__.partition(".")[0] in ("torch", "accelerate")


def is_of_own_kind(loader: Any) -> bool:
    """Tell whether it is a DataLoader that does something of its own with the batches that torch's makes."""
    from torch.utils.data import DataLoader  # noqa: PLC0415 - only a trainer has it

    kind = type(loader)
    return (
        issubclass(kind, DataLoader)
        and not is_of_librarys_kind(loader)
        and kind._get_iterator is DataLoader._get_iterator  # noqa: SLF001 - has no public name
    )


def is_rest_of(loader: Any, rest: Any) -> bool:
    """Tell whether a framework's function has made the rest of a loader of its own kind like that loader.

    Args:
        loader: of its own kind.
        rest: what `rest` returned for it, and one batch; it is spoiled.
    """
    sampler = skipping(rest)
    if type(rest) is not type(loader) or sampler.skip_batches != 1:
        return False
    is_alike = (
        type(sampler.batch_sampler) is type(loader.batch_sampler)
        and all(getattr(rest, name) is getattr(loader, name) for name in ("dataset", "generator"))
        and rest.collate_fn == loader.collate_fn
        and rest.num_workers == loader.num_workers
    )
    asked: list[bool] = []

    def no_batches() -> Any:
        asked.append(True)
        return iter(())

    rest._get_iterator = no_batches  # noqa: SLF001 - as above
    next(iter(rest), None)
    return is_alike and bool(asked)


def below(loader: Any) -> tuple[Any, str] | None:
    """Return what makes the batches, and the name of the method that begins to; None where nobody can know.

    What is set there on the instance is called in its stead.
    """
    base = getattr(loader, "base_dataloader", None)
    if base is not None:
        return base, "__iter__"
    return (loader, "_get_iterator") if is_of_own_kind(loader) else None


class Kept:
    """The batches of workers that stay; their loader keeps it, and begins it again in each epoch.

    Args:
        made: torch's iterator.
        heard: its batches in this epoch.
        hear: returns those of another one.
    """

    def __init__(self, made: Any, heard: Iterator[Any], hear: Callable[[], Iterator[Any]]) -> None:
        self._made, self._heard, self._hear = made, heard, hear

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._heard)

    def _reset(self, loader: Any) -> None:
        self._made._reset(loader)  # noqa: SLF001 - what a DataLoader calls
        self._heard = self._hear()


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
    # A framework may call its own so too.
    is_accelerates = f"{type(loader).__module__}.{type(loader).__name__}" == _DISPATCHER
    if not is_accelerates or loader.split_batches:
        return 1
    return int(loader.state.num_processes) if loader.state.process_index == 0 else 0


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell the loader, and samplers that it does not reach, as the Trainer does at each epoch."""
    below = getattr(getattr(loader, "batch_sampler", None), "batch_sampler", None)
    for thing in (loader, below):
        if thing is not None and hasattr(thing, "set_epoch"):
            thing.set_epoch(epoch)
