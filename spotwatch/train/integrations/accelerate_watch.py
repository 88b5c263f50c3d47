# SPDX-License-Identifier: Apache-2.0
"""Where Accelerate's loaders are reached into: an object that is told when a pass begins, fetches and yields.

What it makes of that is in `accelerate_loaders`. Each loader is changed on the instance, and looked at first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard, SkipBatchSampler, SkipDataLoader

from spotwatch.errors import ConfigError


class Listener(Protocol):
    """What a watched loader speaks to."""

    def passes(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return what `for` is to get, of what Accelerate would yield."""

    def is_asked(self) -> None:
        """Hear that the epoch it is in was asked for, by the program or within a pass."""

    def begins(self) -> None:
        """Hear that the loader inside is about to begin."""

    def fetches(self) -> None:
        """Hear that a batch is about to be fetched, the first one perhaps not."""


class Skipping:
    """A batch sampler's first `keep` batches, and those after `count`; the others are not loaded either."""

    def __init__(self, sampler: Any, keep: int, count: int, then: Callable[[], None]) -> None:
        self._sampler = sampler
        self._keep = keep
        self._count = count
        self._then = then

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._sampler)
        for number in range(self._count):
            batch = next(batches)
            if number < self._keep:
                yield batch
        self._then()
        yield from batches

    def __len__(self) -> int:
        return len(self._sampler) - self._count + self._keep


class Rest:
    """Stands in for the loader inside Accelerate's, while a pass that was broken off is taken up."""

    def __init__(self, base: Any, batches: Callable[[], Iterator[Any]]) -> None:
        self._base = base
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self._batches()

    def __len__(self) -> int:
        return len(self._base)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)

    @property  # type: ignore[misc]  # Accelerate's own claims in this way to be what it stands for
    def __class__(self) -> Any:
        return type(self._base)


class _Watched:
    """Accelerate's loader, which tells a Position what it does."""

    _spotwatch: Listener

    @property
    def iteration(self) -> int:
        self._spotwatch.is_asked()
        return epoch_of(self)

    @iteration.setter
    def iteration(self, epoch: int) -> None:
        vars(self)["iteration"] = epoch

    def __iter__(self) -> Iterator[Any]:
        batches: Iterator[Any] = super().__iter__()  # type: ignore[misc]  # of the class beside this one
        return self._spotwatch.passes(batches)

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)  # type: ignore[misc]  # likewise
        self._spotwatch.begins()

    def _update_state_dict(self) -> None:
        self._spotwatch.fetches()
        super()._update_state_dict()  # type: ignore[misc]  # likewise


class _Shard(_Watched, DataLoaderShard):
    pass


class _Dispatcher(_Watched, DataLoaderDispatcher):
    pass


_WATCHED = {DataLoaderShard: _Shard, DataLoaderDispatcher: _Dispatcher}


def epoch_of(loader: Any) -> int:
    """Return the epoch that it is in, without asking as the program does."""
    return int(vars(loader)["iteration"])


def is_copy(loader: Any, of: Any) -> bool:
    """Tell whether a loader is a copy that Accelerate's `skip_first_batches` has made of a watched one."""
    if type(loader) not in (*_WATCHED, SkipDataLoader):
        return False
    mine, its = loader.base_dataloader, of.base_dataloader
    if mine.dataset is its.dataset and getattr(loader, "skip_batches", False):
        return True
    samplers = [one for one in (mine.sampler, mine.batch_sampler) if isinstance(one, SkipBatchSampler)]
    return any(one.batch_sampler in (its.sampler, its.batch_sampler) for one in samplers)


def watch(loader: Any, listener: Listener) -> None:
    """Let it tell the listener what it does; `expect_known` has looked at it."""
    # By the class, for that is where `for` looks; through object, for Accelerate hides its own.
    object.__dict__["__class__"].__set__(loader, _WATCHED[type(loader)])
    loader._spotwatch = listener  # noqa: SLF001 - ours


def expect_known(loader: Any, name: str) -> None:
    """Refuse a loader that Accelerate did not make, or that works otherwise.

    Raises:
        ConfigError: it is one.
    """
    if type(loader) in _WATCHED.values():
        raise ConfigError(
            f"{name} is tracked by another SpotwatchRun already: between two trainings of one Accelerator "
            f"call accelerator.free_memory(), and prepare anew what the next one needs"
        )
    if type(loader) not in _WATCHED:
        raise ConfigError(
            f"{name} is a {type(loader).__qualname__}, which Accelerate did not make: give "
            f"accelerator.prepare a torch.utils.data.DataLoader"
        )
    wanted = ("base_dataloader", "set_epoch", "_update_state_dict", "iteration", "end_of_dataloader")
    missing = [attribute for attribute in wanted if not hasattr(loader, attribute)]
    if missing:
        raise ConfigError(
            f"{name}: this version of Accelerate has no {', '.join(missing)}: pip install accelerate==1.15.0"
        )
