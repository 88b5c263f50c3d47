# SPDX-License-Identifier: Apache-2.0
"""What the order of a prepared loader depends on, and how its passes are made to begin alike.

Global random state is none of it: that is in `chance`.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate.data_loader import DataLoaderDispatcher, SeedableRandomSampler, get_sampler
from torch.utils.data import IterableDataset, RandomSampler

from spotwatch.errors import ConfigError
from spotwatch.train.integrations.accelerate_chance import Chance
from spotwatch.train.integrations.accelerate_shape import dataset_of, processes
from spotwatch.train.integrations.workers import shield
from spotwatch.train.state.stateful_loader import has_shuffle_buffer

log = logging.getLogger("spotwatch.train")


class Order:
    """The generators and the stream that a loader's order comes from.

    Args:
        loader: as `Accelerator.prepare` returned it.
        base: the loader inside.
    """

    def __init__(self, loader: Any, base: Any) -> None:
        self._loader = loader
        self._base = base

    def capture(self) -> dict[str, Any]:
        """Return their states, in values that can be saved."""
        stream = self._stream()
        return {
            "generators": [generator.get_state() for generator in self._generators()],
            "stream": None if stream is None else copy.deepcopy(stream.state_dict()),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Put them back.

        Raises:
            ValueError: they are others.
        """
        ours, states = self._generators(), state["generators"]
        if len(ours) != len(states):
            raise ValueError(
                f"its order came from {len(states)} generators, and this loader's from {len(ours)}: make it "
                f"as it was, or let it be the same on any number of processes by use_seedable_sampler=True"
            )
        for generator, its in zip(ours, states, strict=True):
            generator.set_state(its)
        stream = self._stream()
        if stream is not None and state["stream"] is not None:
            stream.load_state_dict(copy.deepcopy(state["stream"]))

    def chance(self) -> Chance:
        """Return the random state that the loader reads with, but for the generators of its order."""
        base, sampler = self._base, get_sampler(self._base)
        parts = [] if base.num_workers else [base.collate_fn, dataset_of(base)]
        parts += [] if isinstance(sampler, SeedableRandomSampler) else [sampler]
        parts += [base.batch_sampler, getattr(base.batch_sampler, "batch_sampler", None)]
        return Chance(parts, self._generators())

    def _generators(self) -> list[torch.Generator]:
        sampler = get_sampler(self._base)
        if isinstance(sampler, SeedableRandomSampler):
            sampler = None  # seeds its own anew for each epoch
        owners = (self._base, sampler, self._base.dataset)
        found = [getattr(owner, "generator", None) for owner in owners]
        found.append(getattr(self._loader, "synchronized_generator", None))
        unique = {id(one): one for one in found if isinstance(one, torch.Generator)}
        return list(unique.values())

    def _stream(self) -> Any:
        """Return the dataset, if it counts samples or epochs in this process."""
        dataset = dataset_of(self._base)
        is_counting = hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")
        # Those of `datasets` are told the epoch, and what they count at its end would end the next one too.
        is_told = type(dataset).__module__.partition(".")[0] == "datasets"
        is_here = isinstance(dataset, IterableDataset) and not self._base.num_workers
        return dataset if is_counting and is_here and not is_told else None


def begin_alike(loader: Any, base: Any, name: str) -> None:
    """Let each pass of a loader begin in the same way, in each life.

    Raises:
        ConfigError: what its passes begin with cannot be known.
    """
    shield(base)
    if base.persistent_workers:
        _let_workers_end(base, name)
    if loader.use_stateful_dataloader:
        _make_stateful_exact(base, loader)


def goes_by_state(base: Any) -> bool:
    """Tell whether torchdata's state of a loader is all that its next sample depends on."""
    return not has_shuffle_buffer(base.dataset)


def skipped(
    batches: Iterator[Any], keep: int, count: int, then: Callable[[], None], name: str
) -> Iterator[Any]:
    """Yield the first `keep` batches, and those after `count`; call `then` before the first of these.

    Raises:
        ConfigError: there are none.
    """
    for number in range(count):
        batch = next(batches, batches)
        if batch is batches:
            raise _ended(name, number, count)
        if number < keep:
            yield batch
    then()
    batch = next(batches, batches)
    if batch is batches:
        raise _ended(name, count, count)
    yield batch
    yield from batches


def _ended(name: str, number: int, count: int) -> ConfigError:
    return ConfigError(
        f"{name}: its stream has ended after {number} batches, and {count} were taken before, not the last: "
        f"give it what it had, to the end of this epoch"
    )


def _let_workers_end(base: Any, name: str) -> None:
    """Let workers end with their pass: those that persist draw chance in a loader's first pass alone."""
    is_told = type(base.dataset).__module__.partition(".")[0] == "datasets"
    if isinstance(base.dataset, IterableDataset) and not is_told:
        raise ConfigError(
            f"{name}: persistent_workers=True with an IterableDataset: what its workers count from epoch to "
            f"epoch is in no save; leave persistent_workers out"
        )
    log.warning("%s: persistent_workers is switched off, so that its epochs begin alike in each life", name)
    base.__dict__["persistent_workers"] = False  # a loader forbids it to others
    base._iterator = None  # noqa: SLF001 - it holds the workers of passes before the run


def _make_stateful_exact(base: Any, loader: Any) -> None:
    """Let each pass of torchdata's loader begin alike, with an order that does not come from global state."""
    if isinstance(loader, DataLoaderDispatcher) and processes() > 1:
        raise ConfigError(
            "use_stateful_dataloader=True with dispatch_batches=True on several processes: Accelerate keeps "
            "the state of other batches than it has yielded; leave out one of both"
        )
    base.load_state_dict({})  # it has begun a pass to learn its state
    sampler = get_sampler(base)
    if type(sampler) is RandomSampler and sampler.generator is None:
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        sampler.generator = torch.Generator().manual_seed(seed)
