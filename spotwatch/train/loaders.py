# SPDX-License-Identifier: Apache-2.0
"""A DataLoader that can be saved in the middle of an epoch: it goes on at the first batch that was not taken.

Its state is the epoch and how many samples of it the training loop has taken, not how far the workers have
read ahead. Order and chance in the workers follow from the seed, the epoch and the batch alone, so that the
global random state is not drawn from. It reads no data of its own. Importing it does not import torch.
"""

from __future__ import annotations

import functools
import logging
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from spotwatch.errors import ConfigError
from spotwatch.train.sample_order import Cut, Order
from spotwatch.train.shield import worker_init

log = logging.getLogger("spotwatch.train")

_OURS = {
    "sampler": "the order comes from shuffle and seed",
    "batch_sampler": "the order comes from shuffle and seed",
    "generator": "give seed instead",
}


class ResumableLoader:
    """A `torch.utils.data.DataLoader` of a dataset with a length, to be tracked like a model.

    `for batch in loader` yields what is left of the epoch, all of it unless it is taken up again: after a
    resume, or after a loop that was left. That may be nothing: so count epochs by `for epoch in
    range(loader.epoch, epochs)`, and what is done at an epoch's end is done. `forever()` yields one epoch
    after another. With `num_workers`, the random generators of Python, numpy and torch are seeded for each
    batch. The workers are shielded from the signals that end the trainer.

    All ranks are given the same arguments but `rank`; their states are then equal, and a run may go on with
    another `batch_size` or `world_size`: it takes up the order at the same sample.

    Args:
        dataset: has `__len__` and `__getitem__`, and is the same in each life of the run.
        batch_size: samples a batch, of this rank.
        shuffle: in another order each epoch.
        seed: of the order, and of chance in the workers.
        drop_last: leave out the samples at the end of an epoch that do not make a batch for each rank.
            Otherwise the last batches are smaller, and the first samples fill them up to equal sizes.
        rank: which of the ranks that share the samples this is.
        world_size: how many ranks share them.
        options: others of DataLoader's: `num_workers`, `collate_fn`, `pin_memory`, `persistent_workers`, ...

    Raises:
        ConfigError: an argument cannot be used, or there is not one batch.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        **options: Any,
    ) -> None:
        from torch.utils.data import DataLoader  # noqa: PLC0415 - trainers bring it; this package does not need it

        _refuse(dataset, batch_size, rank, world_size, options)
        self.dataset = dataset
        self._order = Order(len(dataset), shuffle, seed)
        self._cut = Cut(batch_size, rank, world_size, drop_last)
        self._epoch = 0
        self._samples = 0
        self._pass = 0
        self._is_epoch_known = False
        """Whether the program has asked for the epoch since a state was loaded or a batch was taken."""
        self._batches = _Batches()
        shield = functools.partial(_shielded, options.pop("worker_init_fn", None))
        seeded: Any = _Seeded(dataset)
        self._loader: DataLoader[Any] = DataLoader(
            seeded, batch_sampler=self._batches, worker_init_fn=shield, **options
        )
        if not len(self):
            raise ConfigError(
                f"loader: {len(dataset)} samples make no batch of {batch_size} for each of {world_size} "
                f"ranks; use a smaller batch_size, or drop_last=False"
            )

    @property
    def epoch(self) -> int:
        """Return the epoch of the next batch, or of the last one until its loop is over; from 0."""
        self._is_epoch_known = True
        return self._epoch

    @property
    def samples(self) -> int:
        """Return how many samples of this epoch all ranks together have taken."""
        return self._samples

    @property
    def taken(self) -> int:
        """Return how many batches of this epoch are taken, of this rank, in lives before too.

        So `enumerate(loader, start=loader.taken)` numbers them as if the run had never been stopped.
        """
        return len(self) - len(self._cut.begins(self._samples, self._order.length))

    def __len__(self) -> int:
        """Return the batches of a whole epoch, of this rank."""
        return len(self._cut.begins(0, self._order.length))

    def __iter__(self) -> Iterator[Any]:
        """Yield what is left of the epoch; the next one begins when this is used up."""
        import torch  # noqa: PLC0415 - as above

        self._pass += 1
        mine = self._pass
        begins = self._cut.begins(self._samples, self._order.length)
        if not (begins or self._is_epoch_known):
            log.warning(
                "this pass over the loader is empty: all of epoch %d was taken before, when the run was "
                "saved, or by a loop that was left. Count epochs by the loader, not by the step: "
                "`for epoch in range(loader.epoch, epochs)`",
                self._epoch,
            )
        self._is_epoch_known = False
        if begins:
            self._batches.plan(self._order, self._cut, self._epoch, begins)
            # DataLoader draws from it what it seeds workers with; from the global one, that would be a draw
            # more for each resume.
            self._loader.generator = torch.Generator().manual_seed(self._order.number(self._epoch))
            for batch, begin in zip(self._loader, begins, strict=True):
                if mine != self._pass:
                    raise RuntimeError(
                        "this pass over the loader is over: another one was begun, or a state was loaded"
                    )
                # Before the caller has it: what it saves after this batch contains this batch.
                self._samples = min(begin + self._cut.samples, self._order.length)
                yield batch
        self._epoch += 1
        self._samples = 0

    def forever(self) -> Iterator[Any]:
        """Yield what is left of the epoch, then one epoch after another, without an end."""
        while True:
            self._is_epoch_known = True  # they are not counted
            yield from self

    def state_dict(self) -> dict[str, Any]:
        """Return where the training loop is, and what its order depends on."""
        return {"epoch": self._epoch, "samples": self._samples, "order": self._order.to_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was called; skipped samples are not read.

        Raises:
            ValueError: the order was another one.
        """
        ours = self._order.to_dict()
        if state["order"] != ours:
            raise ValueError(
                f"it was in the middle of an order of {state['order']}, and this loader has {ours}: make it "
                f"with the same dataset, shuffle and seed, or track it under another name to begin anew"
            )
        self._pass += 1
        self._is_epoch_known = False
        self._epoch, self._samples = state["epoch"], state["samples"]


def _refuse(dataset: Any, batch_size: Any, rank: int, world_size: int, options: dict[str, Any]) -> None:
    problems = [f"loader: {name} cannot be given: {why}" for name, why in _OURS.items() if name in options]
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        problems.append(
            f"loader: a {type(dataset).__qualname__} has no length or no samples by number; for a stream use "
            f"torchdata's StatefulDataLoader"
        )
    if type(batch_size) is not int or batch_size < 1:
        problems.append(f"loader: batch_size {batch_size!r} is no whole number from 1 on")
    if not 0 <= rank < world_size:
        problems.append(f"loader: rank {rank} of {world_size}; ranks count from 0")
    if problems:
        raise ConfigError(*problems)


class _Batches:
    """DataLoader's batch sampler: for each batch its seed, and then its samples."""

    def __init__(self) -> None:
        self._make: Callable[[], Iterator[list[int]]] = lambda: iter(())

    def plan(self, order: Order, cut: Cut, epoch: int, begins: Sequence[int]) -> None:
        def make() -> Iterator[list[int]]:
            samples = order.of(epoch)
            for begin in begins:
                yield [order.number(epoch, begin, cut.rank), *cut.of(samples, begin)]

        self._make = make

    def __iter__(self) -> Iterator[list[int]]:
        return self._make()


class _Seeded:
    """The dataset as the workers see it: a batch at a time, with chance of its own."""

    def __init__(self, dataset: Any) -> None:
        self.own = dataset

    def __getitems__(self, batch: list[int]) -> Any:
        from torch.utils.data import get_worker_info  # noqa: PLC0415 - as above

        seed, *samples = batch
        # In the trainer's own process the global state is the trainer's, and is saved.
        if get_worker_info() is not None:
            _seed(seed)
        together = getattr(self.own, "__getitems__", None)
        return together(samples) if together else [self.own[n] for n in samples]


def _seed(seed: int) -> None:
    import torch  # noqa: PLC0415 - as above

    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def _shielded(own: Callable[[int], None] | None, worker_id: int) -> None:
    from torch.utils.data import get_worker_info  # noqa: PLC0415 - as above

    worker_init(worker_id)
    # A program looks for its own dataset there, to open what it reads; the worker keeps what it was given.
    info: Any = get_worker_info()
    object.__setattr__(info, "dataset", info.dataset.own)
    if own is not None:
        own(worker_id)
