# SPDX-License-Identifier: Apache-2.0
"""Where training stands in a Lightning loader, and how another process comes to stand there.

Lightning begins a loader anew after a resume, whose order then comes from other chance. Here the chance that
an epoch of it began with is kept, and a later process draws the same epoch again up to the batch that comes
next. Loaders with a `state_dict` of their own are asked for that instead. It saves nothing, and knows neither
trainer nor step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spotwatch.errors import ConfigError
from spotwatch.train.loaders import ResumableLoader
from spotwatch.train.shield import worker_init
from spotwatch.train.state import rng


@dataclass(frozen=True, slots=True)
class Chance:
    """All that the order of a loader may come from, at one moment."""

    everywhere: dict[str, Any]
    generators: list[Any]
    epochs: list[int]

    @classmethod
    def now(cls, loader: object) -> Chance:
        """Return it as it is."""
        generators = [generator.get_state() for generator in _generators(loader)]
        return cls(rng.capture(), generators, [sampler.epoch for sampler in _samplers_with_epochs(loader)])

    def put_back(self, loader: object, *, everywhere: bool = True) -> None:
        """Let the loader draw from it; `everywhere`: and all else that draws from the global generators."""
        if everywhere:
            rng.restore(self.everywhere)
        for generator, state in zip(_generators(loader), self.generators, strict=True):
            generator.set_state(state)
        for sampler, epoch in zip(_samplers_with_epochs(loader), self.epochs, strict=True):
            sampler.set_epoch(epoch)

    def to_plain(self) -> dict[str, Any]:
        """Return it as values that can be saved."""
        return {"everywhere": self.everywhere, "generators": self.generators, "epochs": self.epochs}


def shield(loader: Any) -> None:
    """Let the workers of a DataLoader outlive a signal to the whole process group; once is enough."""
    own = getattr(loader, "worker_init_fn", None)
    if (
        getattr(loader, "num_workers", 0)
        and not isinstance(own, Shield)
        and hasattr(loader, "worker_init_fn")
    ):
        loader.worker_init_fn = Shield(own)


@dataclass(frozen=True, slots=True)
class Shield:
    """A `worker_init_fn` that shields, and then calls the program's own."""

    own: Any

    def __call__(self, worker_id: int) -> None:
        """Begin a worker."""
        worker_init(worker_id)
        if self.own is not None:
            self.own(worker_id)


class Source:
    """A loader that Lightning iterates over, and that remembers where it is.

    It looks like the loader itself: what it does not know is asked from that.

    Args:
        loader: an iterable that yields the same from the same chance.
    """

    _OWN = frozenset({"loader", "_iterator_of", "_begun", "_first", "_taken", "_again", "_resumed"})

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._iterator_of: Iterator[Any] | None = None
        self._begun: Chance | None = None
        self._first: Chance | None = None
        self._taken = 0
        self._again = False
        self._resumed: dict[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        if name in self._OWN:
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self.loader, name, value)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self._settle()
        resumed, self._resumed = self._resumed, None
        if resumed is not None and resumed["own"] is not None:
            self._taken = resumed["taken"]
            self._iterator_of = iter(self.loader)
        elif resumed is not None:
            self._iterator_of = self._replay(resumed)
        else:
            # A loader whose workers live on draws nothing when it begins again.
            self._again = getattr(self.loader, "persistent_workers", False) and self._iterator is not None
            self._begun, self._first, self._taken = Chance.now(self.loader), None, 0
            self._iterator_of = iter(self.loader)
        return _Counted(self, self._iterator_of)

    @property
    def is_stateful(self) -> bool:
        """Tell whether the loader says by itself where it is."""
        return hasattr(self.loader, "state_dict") and hasattr(self.loader, "load_state_dict")

    def state(self, ahead: int) -> dict[str, Any]:
        """Return where it is.

        Args:
            ahead: so many batches were taken from it that training has not had yet.
        """
        self._settle()
        now = Chance.now(self.loader)
        taken, size = max(self._taken - ahead, 0), _size(self.loader)
        if self.is_stateful:
            return {"own": self.loader.state_dict(), "now": now.to_plain(), "taken": taken, "size": size}
        begun, first = self._begun or now, self._first or now
        return {
            "own": None,
            "now": now.to_plain(),
            "begun": begun.to_plain(),
            "first": first.to_plain(),
            "again": self._again,
            "taken": taken,
            "size": size,
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on where `state` was taken.

        Raises:
            ConfigError: this loader is another one.
        """
        if (state["own"] is not None) != self.is_stateful:
            raise ConfigError(
                f"the checkpoint was made in the middle of an epoch of another kind of loader than this "
                f"{type(self.loader).__name__}: give the same, or go on from the end of an epoch"
            )
        size = _size(self.loader)
        if size != state["size"]:
            raise ConfigError(
                f"the checkpoint was made in the middle of an epoch whose loader had {state['size'][0]} "
                f"batches of {state['size'][1]} samples, and this one has {size[0]} of {size[1]}: make it of "
                f"the same dataset with the same batch_size, or start another run_id"
            )
        if self.is_stateful:
            self.loader.load_state_dict(state["own"])
        self._resumed = state

    def begin_epoch(self, state: dict[str, Any]) -> None:
        """Let the next iteration be of the epoch after that in which `state` was taken.

        Other loaders than ours count no epochs, or keep what is left of the last one.
        """
        if isinstance(self.loader, ResumableLoader) and state["own"] is not None:
            self.loader.load_state_dict(state["own"])

    def put_back_generators(self, state: dict[str, Any]) -> None:
        """Let the loader's own generators draw what they were about to draw."""
        Chance(**state["now"]).put_back(self.loader, everywhere=False)

    def _settle(self) -> None:
        """Let our own loader, when it has yielded all, end its epoch: Lightning asks it no further."""
        iterator = self._iterator_of
        if (
            iterator is not None
            and isinstance(self.loader, ResumableLoader)
            and self._taken >= len(self.loader)
        ):
            self._iterator_of, self._taken = None, 0
            next(iterator, None)

    def _replay(self, state: dict[str, Any]) -> Iterator[Any]:
        self._begun, self._first = Chance(**state["begun"]), Chance(**state["first"])
        self._again, self._taken = state["again"], state["taken"]
        self._begun.put_back(self.loader)
        iterator: Any = self._begin_again() if self._again else iter(self.loader)
        self._first.put_back(self.loader)
        for _ in range(self._taken):
            if _yields_by_number(iterator):
                iterator._next_index()  # noqa: SLF001 - the order without the samples, which are not wanted
                iterator._num_yielded += 1  # noqa: SLF001 - likewise
            else:
                next(iterator)
        self.put_back_generators(state)
        batches: Iterator[Any] = iterator
        return batches

    def _begin_again(self) -> Iterator[Any]:
        """Begin as a loader does that has begun before: without the draw of a seed for new workers."""
        import torch  # noqa: PLC0415 - trainers bring it; this package does not need it

        generator, self.loader.generator = self.loader.generator, torch.Generator()
        try:
            return iter(self.loader)
        finally:
            self.loader.generator = generator


def resume_all(sources: list[Source], states: list[dict[str, Any]]) -> None:
    """Let the next iteration of each go on where its state was taken.

    Raises:
        ConfigError: these are other loaders.
    """
    if len(sources) != len(states):
        raise ConfigError(
            f"the checkpoint was made in the middle of an epoch that had {len(states)} loaders, and this "
            f"program has {len(sources)}: give the same, or start another run_id"
        )
    for source, state in zip(sources, states, strict=True):
        source.resume(state)


class _Counted(Iterator[Any]):
    def __init__(self, source: Source, iterator: Iterator[Any]) -> None:
        self._source = source
        self._batches = iterator

    def __next__(self) -> Any:
        source = self._source
        if source._first is None:  # noqa: SLF001 - the two are one
            # Only now a loader without workers asks its sampler, which draws.
            source._first = Chance.now(source.loader)  # noqa: SLF001 - likewise
        batch = next(self._batches)
        source._taken += 1  # noqa: SLF001 - likewise
        return batch


def _yields_by_number(iterator: Any) -> bool:
    """Tell whether samples are read here, by number: then they need not be read to be passed over."""
    return (
        type(iterator).__name__ == "_SingleProcessDataLoaderIter"
        and getattr(iterator, "_dataset_kind", None) == 0  # of torch's _DatasetKind: Map
        and hasattr(iterator, "_next_index")
        and hasattr(iterator, "_num_yielded")
    )


def _size(loader: Any) -> list[int | None]:
    """Return how many batches and samples it has; None where it does not know."""
    return [_length(loader), _length(getattr(loader, "dataset", None))]


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None


def _samplers(loader: Any) -> list[Any]:
    batches = getattr(loader, "batch_sampler", None)
    found = [getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)]
    return [one for n, one in enumerate(found) if one is not None and one not in found[:n]]


def _generators(loader: Any) -> list[Any]:
    """Return the torch generators that the loader draws from, each once."""
    owners = [loader, *_samplers(loader)]
    found = [getattr(owner, "generator", None) for owner in owners]
    return [one for n, one in enumerate(found) if hasattr(one, "get_state") and one not in found[:n]]


def _samplers_with_epochs(loader: Any) -> list[Any]:
    return [one for one in _samplers(loader) if hasattr(one, "set_epoch") and type(one.epoch) is int]
