# SPDX-License-Identifier: Apache-2.0
"""Where the loop is in a loader that Accelerate has prepared, and how such a loader goes on from there.

Accelerate fetches a batch ahead, so the random state of a save is one fetch too late for the next batch: what
it was before that fetch is kept beside it. What is saved when, it does not decide.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import torch
from accelerate import skip_first_batches
from accelerate.data_loader import (
    BatchSamplerShard,
    DataLoaderDispatcher,
    SeedableRandomSampler,
    SkipBatchSampler,
    get_sampler,
)
from torch.utils.data import IterableDataset, RandomSampler

from spotwatch.errors import ConfigError
from spotwatch.train.integrations.accelerate_watch import Rest, Skipping, expect_known, watch
from spotwatch.train.integrations.chance import Notes
from spotwatch.train.shield import worker_init

log = logging.getLogger("spotwatch.train")


class Luck:
    """The random states that one pass over a loader was begun with and fetches its next batch with.

    Its form is that of a random generator: another number of ranks gives each of them one of its own.
    """

    def __init__(self) -> None:
        self.begin: dict[str, Any] | None = None
        self.fetch: dict[str, Any] | None = None
        self.kept: dict[str, Any] | None = None
        """What is saved during an evaluation, whatever becomes of the pass meanwhile."""

    def get_state(self) -> dict[str, Any]:
        """Return both; None where there is none."""
        return self.kept or {"begin": self.begin, "fetch": self.fetch}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take both."""
        self.begin, self.fetch, self.kept = state["begin"], state["fetch"], None

    def manual_seed(self, seed: int) -> None:
        """Forget both: they were another rank's."""
        del seed
        self.begin = self.fetch = None


class Position:
    """Where the training loop is in one prepared loader; to be tracked like a model, and `luck` beside it.

    Args:
        loader: as `Accelerator.prepare` returned it.
        name: for messages.
        rereads: take up an epoch by reading again what was read, instead of by number.

    Raises:
        ConfigError: this loader is none of Accelerate's, or of a version that works otherwise.
    """

    def __init__(self, loader: Any, name: str, *, rereads: bool = False) -> None:
        expect_known(loader, name)
        self.loader = loader
        self.name = name
        self.luck = Luck()
        self._chance = Notes()
        self._base = loader.base_dataloader
        self._is_dispatched = isinstance(loader, DataLoaderDispatcher)
        self._at_once = 1
        if self._is_dispatched and not loader.split_batches and not loader.submesh_tp:
            self._at_once = loader.state.num_processes
        self._reads_here = not (self._is_dispatched and loader.state.process_index)
        self._is_stateful = bool(loader.use_stateful_dataloader)
        self._by_number = not (rereads or self._is_stateful or _is_stream(self._base))
        if self._is_stateful:
            _make_stateful_exact(self._base, loader)
        if self._base.num_workers:
            self._base.worker_init_fn = functools.partial(_shielded, self._base.worker_init_fn)
        self._pass = 0
        self._in_pass = self._has_begun = self._is_resumed = False
        self._fetches = 0
        self._yielded = 0
        self._begin: list[torch.Tensor] = []
        self._at_start: dict[str, Any] | None = None
        """What is saved during an evaluation, instead of where that is."""
        self._pending: dict[str, Any] | None = None
        """Where the last life was, until the loop comes here."""
        watch(loader, self)

    def state_dict(self) -> dict[str, Any]:
        """Return how many batches of which epoch the loop has taken, and what their order depends on."""
        return self._at_start or self._state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there at the next `for batch in loader`.

        Raises:
            ValueError: this loader is another one.
        """
        ours = self._state()
        taken = state["taken"]
        if taken and state["length"] != ours["length"] and not taken["all"]:
            taken = taken | {"batches": self._resized(state, ours)}
        self.loader.iteration = state["iteration"]
        sampler = get_sampler(self._base)
        if state["seed"] is not None and isinstance(sampler, SeedableRandomSampler):
            sampler.initial_seed = state["seed"]
        self._set_generators(state["generators"])
        self._pending = taken and state | {"taken": taken}
        self._at_start = None
        self._in_pass = False
        self._pass += 1

    @property
    def place(self) -> tuple[int, int]:
        """Return the number of the last pass of this life, and how many batches it has taken."""
        return self._pass, self._yielded

    def mark(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return where the loop is now, for `freeze`."""
        return self._state(), self.luck.get_state()

    def freeze(self, mark: tuple[dict[str, Any], dict[str, Any]] | None) -> None:
        """Let saves hold where the loop was at this mark, whatever it takes now; None: where it is."""
        self._at_start, self.luck.kept = mark or (None, None)

    def passes(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield what is left of the epoch, and count; `batches` is what Accelerate would yield."""
        pending, self._pending = self._pending, None
        taken = pending["taken"] if pending else None
        if taken and taken["all"]:
            self.loader.iteration += 1
            return
        self._pass += 1
        mine = self._pass
        self._in_pass, self._has_begun, self._is_resumed = True, False, taken is not None
        self._yielded, self._fetches = (taken["batches"] if taken else 0), 0
        if pending and taken:
            self._begin = taken["generators"]
            self._stateful = pending["stateful"]
        try:
            for batch in batches:
                if mine != self._pass:
                    raise RuntimeError(
                        f"{self.name}: this pass is over: another was begun, or a state loaded"
                    )
                self._yielded += 1
                yield batch
        finally:
            self.loader.base_dataloader = self._base
            if mine == self._pass:
                self._in_pass = False
                self.luck.manual_seed(0)

    def begins(self) -> None:
        """Take note of the state that an epoch is begun with, or let it begin where it was left."""
        if not self._in_pass or self._has_begun:
            return
        self._has_begun = True
        if self._is_resumed:
            self.loader.base_dataloader = Rest(self._base, self._go_on)
        else:
            self.luck.begin = self._chance.take()
            self._begin = [generator.get_state() for generator in self._generators()]

    def fetches(self) -> None:
        """Take note of the state that the next batch is fetched with; called before each but the first."""
        if not self._base.num_workers and self._fetches % self._at_once == 0:
            self.luck.fetch = self._chance.take()
        self._fetches += 1

    def _state(self) -> dict[str, Any]:
        if self._pending is not None:
            return self._pending
        taken = None
        if self._in_pass and self._yielded:
            is_all = bool(self.loader.end_of_dataloader)
            taken = {"batches": self._yielded, "all": is_all, "generators": self._begin}
        sampler = get_sampler(self._base)
        return {
            "iteration": self.loader.iteration,
            "taken": taken,
            "length": None if _is_stream(self._base) else len(self.loader),
            "world_size": _processes(),
            "seed": sampler.initial_seed if isinstance(sampler, SeedableRandomSampler) else None,
            "generators": [generator.get_state() for generator in self._generators()],
            "stateful": self.loader.state_dict() if self._is_stateful and taken else None,
        }

    def _resized(self, state: dict[str, Any], ours: dict[str, Any]) -> int:
        batches, before, now = state["taken"]["batches"], state["world_size"], _processes()
        if before == now:
            raise ValueError(
                f"its epoch had {state['length']} batches, and this loader has {ours['length']}: make it of "
                f"the same dataset with the same batch_size"
            )
        whole, rest = divmod(batches * before, now)
        if rest or not self._by_number:
            raise ValueError(
                f"{before} processes had taken {batches} batches each, which {now} cannot take up; resume on "
                f"{before} processes"
            )
        return int(whole)

    def _generators(self) -> list[torch.Generator]:
        sampler = get_sampler(self._base)
        if isinstance(sampler, SeedableRandomSampler):
            sampler = None  # seeds its own anew for each epoch
        owners = (self._base, sampler, self._base.dataset)
        found = [getattr(owner, "generator", None) for owner in owners]
        found.append(getattr(self.loader, "synchronized_generator", None))
        unique = {id(one): one for one in found if isinstance(one, torch.Generator)}
        return list(unique.values())

    def _set_generators(self, states: list[torch.Tensor]) -> None:
        ours = self._generators()
        if len(ours) != len(states):
            raise ValueError(
                f"its order came from {len(states)} generators, and this loader's from {len(ours)}: make it "
                f"as it was, or let it be the same on any number of processes by use_seedable_sampler=True"
            )
        for generator, state in zip(ours, states, strict=True):
            generator.set_state(state)

    def _go_on(self) -> Iterator[Any]:
        """Return the batches that are left, with the random state of the loop untouched."""
        now = self._chance.take()
        try:
            if not self._reads_here:
                return iter(self._base)
            if self.luck.begin is not None:
                self._chance.put(self.luck.begin)
            self._set_generators(self._begin)
            iterator = self._iterator()
            ahead = list(islice(iterator, self._at_once))
        finally:
            self._chance.put(now)
        return chain(ahead, iterator)

    def _iterator(self) -> Iterator[Any]:
        count = self._yielded * self._at_once
        if self._by_number:
            base = skip_first_batches(self.loader, 0).base_dataloader
            sampler = base.sampler if isinstance(base.sampler, SkipBatchSampler) else base.batch_sampler
            sampler.batch_sampler = Skipping(sampler.batch_sampler, count, self._before_fetch)
            iterator: Iterator[Any] = iter(base)
            return iterator
        if self._is_stateful:
            self._base.load_state_dict(self._stateful)
            iterator = iter(self._base)
        else:
            log.info("%s: reads %d batches again, to go on after them", self.name, count)
            iterator = iter(self._base)
            for _ in range(count):
                next(iterator)
        self._before_fetch()
        return iterator

    def _before_fetch(self) -> None:
        if self.luck.fetch is not None:
            self._chance.put(self.luck.fetch)


def _is_stream(base: Any) -> bool:
    return isinstance(base.dataset, IterableDataset) or (base.batch_sampler is None and not _batches(base))


def _batches(base: Any) -> bool:
    return isinstance(base.sampler, BatchSamplerShard | SkipBatchSampler | torch.utils.data.BatchSampler)


def _make_stateful_exact(base: Any, loader: Any) -> None:
    """Let each pass of torchdata's loader begin alike, with an order that does not come from global state."""
    if isinstance(loader, DataLoaderDispatcher) and _processes() > 1:
        raise ConfigError(
            "use_stateful_dataloader=True with dispatch_batches=True on several processes: Accelerate keeps "
            "the state of other batches than it has yielded; leave out one of both"
        )
    base.load_state_dict({})  # it has begun a pass to learn its state
    sampler = get_sampler(base)
    if type(sampler) is RandomSampler and sampler.generator is None:
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        sampler.generator = torch.Generator().manual_seed(seed)


def _processes() -> int:
    from accelerate import PartialState  # noqa: PLC0415 - made by the Accelerator, whose number it is

    return int(PartialState().num_processes)


def _shielded(own: Callable[[int], None] | None, worker_id: int) -> None:
    worker_init(worker_id)
    if own is not None:
        own(worker_id)
