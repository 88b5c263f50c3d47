# SPDX-License-Identifier: Apache-2.0
"""Where training stands in a Lightning loader, and how another process comes to stand there.

Lightning begins a loader anew after a resume, whose order then comes from other chance. Here the chance that
an epoch of it began with is kept, and a later process draws the same epoch again up to the batch that comes
next. Loaders with a `state_dict` of their own are asked for that instead. It saves nothing, and knows neither
trainer nor step.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from typing import Any

from spotwatch.errors import ConfigError
from spotwatch.train.integrations import rows
from spotwatch.train.integrations.lengths import length_of
from spotwatch.train.integrations.lightning_chance import Chance, Draws
from spotwatch.train.integrations.lightning_replay import Replay
from spotwatch.train.integrations.workers import shield
from spotwatch.train.loaders import ResumableLoader
from spotwatch.train.state.stateful_loader import only_counts

log = logging.getLogger("spotwatch.train")

_LOOKS = 2
"""How often in an epoch generators are looked for that were made with a batch, most likely its first."""


class Source:
    """A loader that Lightning iterates over, and that remembers where it is.

    It looks like the loader itself: what it does not know is asked from that.

    Args:
        loader: an iterable that yields the same from the same chance.
        combined: the `CombinedLoader` it is in; where that has no length, batches are read ahead.
    """

    _OWN = frozenset(
        {
            "loader",
            "_combined",
            "_draws",
            "_replay",
            "_rows",
            "_reads_ahead",
            "_iterator_of",
            "_begun",
            "_first",
            "_taken",
            "_again",
            "_has_drawn_seed",
            "_is_over",
            "_before",
            "_resumed",
            "_next",
        }
    )

    def __init__(self, loader: Any, combined: Any) -> None:
        self.loader = loader
        self._combined = combined
        self._draws = Draws(loader)
        self._replay = Replay(loader)
        self._rows = rows.look(getattr(loader, "dataset", None))
        self._reads_ahead: bool | None = None
        self._iterator_of: Iterator[Any] | None = None
        self._begun: Chance | None = None
        self._first: Chance | None = None
        self._taken = 0
        self._again = False
        self._has_drawn_seed = False
        self._is_over = False
        self._before: dict[str, Any] | None = None
        """Where it was before the last batch, where batches are read ahead."""
        self._resumed: dict[str, Any] | None = None
        self._next: dict[str, Any] | None = None
        """The chance that the next batch is drawn from, where that was drawn before the save."""

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
        self._is_over, self._before, self._next = False, None, None
        self._reads_ahead = None
        if resumed is not None and resumed["own"] is not None:
            self._begun, self._first = Chance(**resumed["begun"]), Chance(**resumed["first"])
            self._taken, self._next = resumed["taken"], resumed["chance"]
            self._iterator_of = self._begin_stateful(resumed)
        elif resumed is not None:
            self._iterator_of, self._next = self._begin_replayed(resumed), resumed["chance"]
        else:
            # A loader whose workers live on draws nothing when it begins again.
            lives_on = getattr(self.loader, "persistent_workers", False) and self._iterator is not None
            spares_seed, self._has_drawn_seed = self._has_drawn_seed, False
            self._again = lives_on or spares_seed
            self._begun, self._first, self._taken = self._draws.now(), None, 0
            self._iterator_of = self._replay.begin(again=spares_seed)
        if resumed is not None and resumed["over"]:
            self._iterator_of = self._end_epoch()
        return _Counted(self, self._iterator_of)

    @property
    def is_stateful(self) -> bool:
        """Tell whether the loader says by itself where it is."""
        return hasattr(self.loader, "state_dict") and hasattr(self.loader, "load_state_dict")

    def state(self, ahead: int) -> dict[str, Any]:
        """Return where it is.

        Args:
            ahead: so many batches were read ahead of training: none, or Lightning's one.
        """
        # One that is over has given nothing to the batch ahead. Where nothing is ahead although batches are
        # read ahead, the epoch is over for all.
        before = self._before if ahead and not self._is_over else None
        is_over = self._is_over or (self._before is not None and not ahead)
        if before is None:
            self._settle()
        taken = self._taken if before is None else self._taken - 1
        now = self._draws.now()
        begun, first = self._begun or now, self._first or now
        now, begun, first, chance = self._draws.filled(
            now, begun, first, now if before is None else before["chance"]
        )
        return {
            "own": self._own() if before is None else before["own"],
            "is_stateful": self.is_stateful,
            "now": now.to_plain(),
            "chance": None if before is None else chance.to_plain(),
            "taken": taken,
            "order": self._replay.digests(taken),
            "size": _size(self.loader),
            "rows": self._rows,
            "over": is_over,
            "begun": begun.to_plain(),
            "first": first.to_plain(),
            "again": self._again,
        }

    def resume(self, state: dict[str, Any], *, may_have_other_rows: bool) -> None:
        """Let the next iteration go on where `state` was taken.

        Args:
            state: of this loader, or of its like in an earlier life.
            may_have_other_rows: it is made anew in the course of training; then these are only said.

        Raises:
            ConfigError: this loader is another one.
        """
        if state["is_stateful"] != self.is_stateful:
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
        if may_have_other_rows:
            self._say_other_rows(state)
        elif not self._has_same_rows(state):
            raise ConfigError(
                "the checkpoint was made in the middle of an epoch whose dataset had other rows: split and "
                "sample with a seed, as by seed_everything() before it, so that each life has the same, or "
                "start another run_id"
            )
        self._resumed = state

    def begin_epoch(self, state: dict[str, Any]) -> None:
        """Let the next iteration be of the epoch after that in which `state` was taken.

        Other loaders than ours count no epochs, or keep what is left of the last one.
        """
        if isinstance(self.loader, ResumableLoader) and state["own"] is not None:
            self.loader.load_state_dict(state["own"])
        self._say_other_rows(state)

    def note_begun(self) -> None:
        """Note that it was begun before anyone followed it: the next iteration need not draw a seed again.

        Workers need theirs, and a loader with an `__iter__` of its own may do what it likes with a generator.
        """
        begins = getattr(type(self.loader), "__iter__", None)
        is_torchs = getattr(begins, "__module__", "").startswith(("torch.utils.data.", "torchdata."))
        self._has_drawn_seed = is_torchs and getattr(self.loader, "num_workers", None) == 0

    def generators(self) -> list[Any]:
        """Return the random generators of its own that it draws from."""
        return self._draws.generators()

    def put_back_generators(self, state: dict[str, Any]) -> None:
        """Let the loader's own generators draw what they were about to draw."""
        self._draws.put_back(Chance(**state["now"]), everywhere=False)

    def _has_same_rows(self, state: dict[str, Any]) -> bool:
        # Earlier builds saved none.
        return rows.are_same(state.get("rows", []), self._rows)

    def _say_other_rows(self, state: dict[str, Any]) -> None:
        if not self._has_same_rows(state):
            log.warning(
                "the dataset of training has other rows than in the lives of this run before: if they are "
                "from a split, split with a seed, or samples of evaluations are trained on"
            )

    def _go_on(self) -> dict[str, Any] | None:
        """Prepare the next batch; return where the loader is before it, if that may have to be saved."""
        if self._first is None:
            # Only now a loader without workers asks its sampler, which draws.
            self._first = self._draws.now()
        if self._next is not None:
            self._draws.put_back(Chance(**self._next))
            self._next = None
        if self._reads_ahead is None:
            self._reads_ahead = length_of(self._combined) is None
        if not self._reads_ahead:
            return None
        # A copy, for it may be of what the loader goes on to change.
        return {"own": copy.deepcopy(self._own()), "chance": self._draws.now(looks=self._taken < _LOOKS)}

    def _own(self) -> dict[str, Any] | None:
        state = self.loader.state_dict() if self.is_stateful else None
        # A stream without a state is read again here, with the chance that its epoch began with.
        return None if only_counts(state) else state

    def _end_epoch(self) -> Iterator[Any]:
        """Yield nothing: the loader itself would begin another epoch, and shorter ones yet another pass."""
        iterator = self._combined._iterator  # noqa: SLF001 - only there it is known which have ended
        if hasattr(iterator, "_consumed"):
            iterator._consumed = [True] * len(iterator._consumed)  # noqa: SLF001 - likewise
        yield from ()

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

    def _begin_replayed(self, state: dict[str, Any]) -> Iterator[Any]:
        self._begun, self._first = Chance(**state["begun"]), Chance(**state["first"])
        self._again, self._taken = state["again"], state["taken"]
        self._draws.put_back(self._begun)
        iterator = self._replay.begin(again=self._again)
        self._draws.put_back(self._first)
        self._replay.pass_over(iterator, self._taken, state["order"])
        self.put_back_generators(state)
        return iterator

    def _begin_stateful(self, state: dict[str, Any]) -> Iterator[Any]:
        """Begin one that knows where it is; where its sampler does not, torchdata draws the order again."""
        is_drawn = not getattr(self.loader, "num_workers", 0) and hasattr(self.loader, "generator")
        self._draws.put_back(Chance(**state["first" if is_drawn else "begun"]))
        # Only now, for it may hold what was put back.
        self.loader.load_state_dict(state["own"])
        iterator = self._replay.begin(again=is_drawn)
        self._replay.draw_now(iterator)
        self.put_back_generators(state)
        return iterator


def wrap(combined: Any) -> None:
    """Put a source around each of the loaders of a `CombinedLoader`, whose workers outlive a signal then."""
    for one in combined.flattened:
        shield(one)
    combined._flattened = [  # noqa: SLF001 - what its public name does is to make all anew
        one if isinstance(one, Source) else Source(one, combined) for one in combined.flattened
    ]


def unwrap(combined: Any) -> None:
    """Let it have the loaders themselves again."""
    ours = combined.flattened
    combined._flattened = [one.loader if isinstance(one, Source) else one for one in ours]  # noqa: SLF001 - likewise


def resume_all(
    sources: list[Source], states: list[dict[str, Any]], *, may_have_other_rows: bool = False
) -> None:
    """Let the next iteration of each go on where its state was taken.

    Args:
        sources: of this life.
        states: of the one before.
        may_have_other_rows: as `Source.resume` has it.

    Raises:
        ConfigError: these are other loaders.
    """
    if len(sources) != len(states):
        raise ConfigError(
            f"the checkpoint was made in the middle of an epoch that had {len(states)} loaders, and this "
            f"program has {len(sources)}: give the same, or start another run_id"
        )
    for source, state in zip(sources, states, strict=True):
        source.resume(state, may_have_other_rows=may_have_other_rows)


class _Counted(Iterator[Any]):
    def __init__(self, source: Source, iterator: Iterator[Any]) -> None:
        self._source = source
        self._batches = iterator

    def __next__(self) -> Any:
        source = self._source
        before = source._go_on()  # noqa: SLF001 - the two are one
        try:
            batch = next(self._batches)
        except StopIteration:
            source._is_over = True  # noqa: SLF001 - likewise
            raise
        source._taken += 1  # noqa: SLF001 - likewise
        source._before = before  # noqa: SLF001 - likewise
        return batch


def _size(loader: Any) -> list[int | None]:
    """Return how many batches and samples it has; None where it does not know."""
    return [length_of(loader), length_of(getattr(loader, "dataset", None))]
