# SPDX-License-Identifier: Apache-2.0
"""Which batch comes next, and with which random state it is made: the place in an epoch, exactly.

The library reads a batch ahead, and without workers makes it with the global random state. So a place holds
that state at the epoch's beginning, and before each batch that was made and not yet trained: these are made
again. It neither shuffles nor loads; samplers and loaders do.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from spotwatch.errors import ConfigError
from spotwatch.train.integrations import held
from spotwatch.train.integrations.chance import Notes
from spotwatch.train.integrations.held import Holdings
from spotwatch.train.integrations.order import Order
from spotwatch.train.integrations.transformers import chance as chances
from spotwatch.train.integrations.transformers import loaders, same
from spotwatch.train.integrations.transformers.chance import Chance, capture, restore

_HEARD = 64
"""Batches of which the random state is remembered: one is made ahead, or one for each process."""
_LOOKS = 2
"""How often in an epoch generators are looked for that were made with a batch, most likely its first."""
_ADVICE = (
    "let the seed, data_seed, train_sampling_strategy and the sampler be what they were, and draw nothing in "
    "it that differs from life to life; or set ignore_data_skip=True to begin the epoch's data anew"
)


class Feed:
    """Counts the batches that training takes from its loader, and takes an epoch up again.

    Args:
        rereads: have workers make the batches of an interrupted epoch again, so that what they draw at random
            comes out alike; else the samplers pass over them.
    """

    def __init__(self, *, rereads: bool) -> None:
        self._rereads = rereads
        self._begun: Chance = {}
        self._holdings: Holdings | None = None
        self._order = Order(_ADVICE)
        self._expected: int | None = None
        self.seen: same.Seen = {}
        """A few rows of the data of this life."""
        self._notes = Notes()
        self._heard: deque[tuple[int, Chance, held.Held | None]] = deque(maxlen=_HEARD)
        self._wanted = 0
        self._fetched = 0
        self._each = 1
        self._ahead: deque[Chance] = deque()
        self._serves: Any = None
        self._stays: dict[str, Any] | None = None
        self._open: Callable[[], Iterator[Any]] | None = None
        self._source: Iterator[Any] | None = None
        self._length: list[int | None] = [None, None]
        self.epoch = 0
        self.taken = 0
        """How many batches of this epoch training has had."""

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the epoch."""
        held_now = None if self._holdings is None else held.plain(self._holdings.read())
        if self._stays is not None:
            return self._stays | {"held": held_now}
        taken = self.taken * self._each
        ahead = [
            _plain(_joined(state, holds))
            for number, state, holds in self._heard
            if taken <= number < self._fetched
        ]
        # A loader that reads ahead knows its end with the last batch, also where it has no length.
        is_over = bool(getattr(self._serves, "end_of_dataloader", False))
        return {
            "epoch": self.epoch,
            "taken": self.taken,
            "length": self._length,
            "rows": self.seen,
            "begun": _plain(self._begun),
            "ahead": ahead,
            "is_over": is_over,
            "held": held_now,
            "order": self._order.at(taken),
        }

    def meet(self, loader: Any, place: dict[str, Any] | None, evaluated: Any) -> None:
        """Know the data of this life before any of it is read; what it holds becomes as at a place.

        Args:
            loader: of training.
            place: what `state_dict` returned; None at the run's beginning.
            evaluated: the datasets of evaluations.
        """
        self._holdings, self.seen = Holdings(loader, evaluated=evaluated), same.look(loader, evaluated)
        if place is not None and place["held"] is not None:
            self._holdings.put(place["held"])

    def begin(self, epoch: int, loader: Any, taken: int = 0) -> None:
        """Begin an epoch; or go on in it, where the library has passed over what was taken."""
        self._enter(epoch, taken, loader, self._with_held(capture()))
        self._listen(loader)

    def stay(self, place: dict[str, Any], loader: Any) -> None:
        """Be at this place, for as long as nothing is taken."""
        self._enter(place["epoch"], place["taken"], loader, place["begun"])
        self._stays = place

    def resume(self, place: dict[str, Any], loader: Any, chance: Chance) -> None:
        """Take an epoch up again; the random state becomes the one of its beginning until batches are taken.

        Args:
            place: what `state_dict` returned.
            loader: of the whole epoch.
            chance: the random state that training goes on with.

        Raises:
            ConfigError: when batches are taken: those passed over are of other samples.
        """
        self._enter(place["epoch"], place["taken"], loader, place["begun"])
        if place["is_over"] or not loader.num_workers:
            # Else what the sampler holds is ahead of what was taken, and comes there by itself.
            chance = self._with_held(chance)
        self._ahead, self._expected = deque([*place["ahead"], chance]), place["order"]
        self._restore(self._begun)
        self._open = (lambda: iter(())) if place["is_over"] else lambda: self._again(loader)

    def take(self, batches: Iterator[Any], count: int) -> Iterator[Any]:
        """Return where to take so many batches from: `batches`, unless the epoch was taken up again."""
        self._wanted = (self.taken + count) * self._each
        if self._open is not None:
            self._restore(self._begun)
            self._source, self._open = self._open(), None
        return batches if self._source is None else self._source

    def took(self, count: int) -> None:
        """Note that training has so many batches more."""
        self.taken += count
        if self._ahead:
            # A process that is sent its batches by another one makes none.
            self._restore(self._ahead.pop())
            self._ahead.clear()

    def _with_held(self, chance: Chance) -> Chance:
        return _joined(chance, None if self._holdings is None else self._holdings.read())

    def _restore(self, chance: Chance) -> None:
        restore(chance)
        if self._holdings is not None and "held" in chance:
            self._holdings.put(chance["held"])

    def _enter(self, epoch: int, taken: int, loader: Any, begun: Chance) -> None:
        self._each = loaders.made_for_each(loader)
        self.epoch, self.taken, self._fetched = epoch, taken, taken * self._each
        self._begun, self._serves, self._length = begun, loader, loaders.length(loader)
        self._heard.clear()
        self._ahead.clear()
        self._order.begin()
        self._open = self._source = self._stays = None

    def _again(self, loader: Any) -> Iterator[Any]:
        # The epoch was noted as begun before the Trainer told its number.
        loaders.set_epoch(loader, self.epoch)
        if loaders.is_stream(loader) or (self._rereads and loader.num_workers):
            source, discard = loader, self.taken
            self._listen(loader, discard=discard * self._each)
        else:
            source, discard = self._passing_over(loader), 0
            self._listen(source, is_noticed=True)
            self._listen(loader)
        self._serves = source
        if loaders.below(source) is not None:
            return iter(source)
        return self._hear(iter(source), discard, listens=False, is_noticed=not discard)

    def _passing_over(self, loader: Any) -> Any:
        # One that makes the batches of all processes has made more than each of them has trained.
        made = self._fetched

        def pass_over(number: int) -> None:
            if number == made:
                self._order.expect(self._expected, number)
                self._put_back()

        source = loaders.rest(loader, made)
        sampler = loaders.skipping(source)
        passed = sampler.batch_sampler
        if loaders.is_of_own_kind(loader):
            # A framework's function makes it anew: it is told the epoch as by the Trainer, and its sampler is
            # the one whose draws and counts were put back.
            loaders.set_epoch(source, self.epoch)
            passed = loader.batch_sampler
        sampler.batch_sampler = self._order.of(passed, pass_over)
        return source

    def _put_back(self) -> None:
        if self._ahead:
            self._restore(self._ahead.popleft())

    def _listen(self, loader: Any, *, discard: int = 0, is_noticed: bool = False) -> None:
        """Hear of each batch where it is made, below the library's reading ahead."""
        below = loaders.below(loader)
        if below is None:
            return
        base, name = below
        begin, is_new, is_first_epoch = getattr(type(base), name), [True], not self.epoch

        def batches() -> Iterator[Any]:
            follows = contextlib.nullcontext() if is_noticed else self._order.following(base)
            with follows, contextlib.nullcontext() if is_first_epoch else loaders.no_seed_twice(base):
                made = begin(base)
            hear = functools.partial(self._hear, made, listens=not base.num_workers)
            heard = hear(discard if is_new and is_new.pop() else 0, is_noticed=is_noticed)
            is_kept = base is loader and base.persistent_workers
            return loaders.Kept(made, heard, lambda: hear(0, is_noticed=False)) if is_kept else heard

        setattr(base, name, batches)

    def _hear(self, made: Iterator[Any], discard: int, *, listens: bool, is_noticed: bool) -> Iterator[Any]:
        for _ in range(discard):
            next(made, None)
        if discard:
            self._order.expect(self._expected, discard)
        while True:
            if not is_noticed:
                self._put_back()
            # Where batches were passed over, the sampler begins within the first call, and notices its end.
            is_noticed = False
            if listens and self._fetched >= self._wanted:
                # It will not be trained before the next save.
                looks = len(self._heard) < _LOOKS
                holds = None if self._holdings is None else self._holdings.read(looks=looks)
                self._heard.append((self._fetched, self._notes.take(), holds))
            try:
                batch = next(made)
            except StopIteration:
                return
            self._fetched += 1
            yield batch


def _joined(chance: Chance, holds: held.Held | None) -> Chance:
    return chance if holds is None else chance | {"held": holds}


def _plain(chance: Chance) -> Chance:
    made = chances.plain(chance)
    return made | {"held": held.plain(made["held"])} if "held" in made else made


def expect_passable(loader: Any) -> None:
    """Refuse a loader of which no later life could pass over the batches that were trained.

    Raises:
        ConfigError: it is no DataLoader, or one that makes its batches in a way of its own.
    """
    from torch.utils.data import DataLoader  # noqa: PLC0415 - only a trainer has it

    is_own = loaders.is_of_own_kind(loader)
    if is_own or (isinstance(loader, DataLoader) and loaders.is_of_librarys_kind(loader)):
        is_stream = loaders.is_stream(loader)
        if is_stream and not is_own:
            return
        rest = None if is_stream else loaders.rest(loader, 1)
        sampler = loaders.skipping(rest) if isinstance(rest, DataLoader) else None
        is_passable = sampler is not None and sampler.batch_sampler is not None
        # Of another kind Accelerate's function makes torch's: what the loader itself does would be lost.
        if is_passable and (not is_own or loaders.is_rest_of(loader, rest)):
            return
    raise ConfigError(
        f"get_train_dataloader() returns a {type(loader).__name__} whose batches cannot be passed over, so "
        f"an interrupted epoch could not be gone on with: return torch's DataLoader with a batch_size or a "
        f"batch_sampler, or what accelerator.prepare makes of one, and do the rest in its dataset or "
        f"collate_fn; or set ignore_data_skip=True to begin such an epoch's data anew"
    )


def keep_seed(loader: Any) -> None:
    """Have a loader whose workers stay, and were started in an earlier life, draw no seed for them again."""
    base = getattr(loader, "base_dataloader", None)
    if base is None:
        return

    def batches() -> Iterator[Any]:
        with loaders.no_seed_twice(base):
            return iter(type(base).__iter__(base))

    base.__iter__ = batches
