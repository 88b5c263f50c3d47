# SPDX-License-Identifier: Apache-2.0
"""What the evaluations since the last step are broken off to: loaders, chance and rates as before the first.

Whether one is broken off, and how the run ends then, is in `accelerate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from accelerate.state import GradientState

from spotwatch.train.integrations.accelerate_kept import Kept
from spotwatch.train.integrations.accelerate_loaders import Position
from spotwatch.train.integrations.accelerate_watch import epoch_of
from spotwatch.train.state import rng


@dataclass(frozen=True, slots=True)
class _Open:
    """An evaluation that is not over."""

    iterator: Iterator[Any]
    epochs: list[int]
    """How many passes each prepared loader had made as it began."""
    before: list[Any]
    """The loaders that Accelerate was in then."""
    entered: list[Any] = field(default_factory=list)
    """Those that it has begun, inside `tqdm` too."""

    def leave(self) -> None:
        """End it where it is."""
        close = getattr(self.iterator, "close", None)
        if close is not None:
            close()
        for loader in self.entered:
            # Accelerate does so at the end of a pass only; held active, it hides training's last batch.
            loader.end()


class Evaluations:
    """The evaluations since the last step, and the state of before the first of them.

    Args:
        positions: of all prepared loaders.
        stepped: what the program may step between two of them, as `Kept` takes it.
    """

    def __init__(self, positions: list[Position], stepped: Iterable[Any]) -> None:
        self._positions = positions
        self._kept = Kept(stepped)
        self._open: list[_Open] = []
        self._chance: dict[str, Any] | None = None
        self._marks: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._places: list[tuple[int, int]] = []
        """Where the loaders were as the last evaluation ended: elsewhere now, there was training since."""
        self._aside: list[Any] = []
        """What the life before has left of an epoch of the loaders, none of which is for an evaluation."""
        self.is_broken = False
        """Whether one was broken off; then saves hold the state of before the first until `forget`."""

    def begin(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Let saves hold the state of before the first one until it ends, and return its iterator."""
        if not self._open and (self._chance is None or self._places != self._now()):
            self._thaw()
            for position in self._positions:
                position.move_on()
            self._kept.take()
            self._chance = rng.capture()
            self._marks = [position.mark() for position in self._positions]
        iterator = iter(batches)
        if not self._open:
            self._aside = [position.set_aside() for position in self._positions]
        epochs = [epoch_of(position.loader) for position in self._positions]
        self._open.append(_Open(iterator, epochs, _active()))
        for position, mark in zip(self._positions, self._marks, strict=True):
            position.freeze(mark)
        return iterator

    def has_batch(self, iterator: Iterator[Any]) -> None:
        """Note which loaders this one is in, as it has given a batch."""
        for one in self._open:
            if one.iterator is iterator:
                new = (loader for loader in _active() if all(loader is not known for known in one.before))
                one.entered[:] = new
                self._take_back(one.entered)

    def goes_on(self, iterator: Iterator[Any]) -> bool:
        """Tell whether this one is not over."""
        return any(one.iterator is iterator for one in self._open)

    def end(self, iterator: Iterator[Any]) -> None:
        """Close this one, unless it is over; its passes are none of the training's epochs."""
        for one in self._open:
            if one.iterator is iterator:
                break
        else:
            return
        one.leave()
        for position, epoch in zip(self._positions, one.epochs, strict=True):
            position.loader.iteration = epoch
        self._open = [other for other in self._open if other is not one]
        self._places = self._now()
        if not self._open:
            self._take_back([])
        if not self._open and not self.is_broken:
            self._thaw()

    def restore(self) -> None:
        """Make chance, and what the program has stepped since, as before the first one."""
        self._kept.put_back()
        if self._chance is not None:
            rng.restore(self._chance)

    def forget(self) -> bool:
        """Close them all, for the run goes on; return whether one had been broken off."""
        if self._chance is None:
            return False
        was_broken, self.is_broken = self.is_broken, False
        for one in self._open:
            one.leave()
        self._open = []
        self._take_back([])
        self._chance = None
        self._thaw()
        return was_broken

    def _take_back(self, entered: list[Any]) -> None:
        """Let training come to what is left, but in the loaders that an evaluation is in."""
        for number, position in enumerate(self._positions[: len(self._aside)]):
            if all(loader is not position.loader for loader in entered):
                position.take_back(self._aside[number])
                self._aside[number] = None

    def _now(self) -> list[tuple[int, int]]:
        return [position.place for position in self._positions]

    def _thaw(self) -> None:
        for position in self._positions:
            position.freeze(None)


def _active() -> list[Any]:
    """Return the loaders that Accelerate is in."""
    return [loader for loader in GradientState().dataloader_references if loader is not None]
