# SPDX-License-Identifier: Apache-2.0
"""What the order and the samples of a Lightning loader come from: chance, own and everyone's, and counts.

It neither saves nor knows where in its epoch a loader is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from spotwatch.train.integrations import held
from spotwatch.train.integrations.held import Held, Holdings
from spotwatch.train.integrations.named import is_librarys
from spotwatch.train.state import rng


@dataclass(frozen=True, slots=True)
class Chance:
    """All that a loader draws from and counts, at one moment."""

    everywhere: dict[str, Any] | None
    """The global generators; None: not these."""
    held: Held
    epochs: dict[str, int]
    """What samplers and datasets were told by `set_epoch`, by where they are."""

    def to_plain(self) -> dict[str, Any]:
        """Return it as values that can be saved."""
        return {"everywhere": self.everywhere, "held": held.plain(self.held), "epochs": self.epochs}


class Draws:
    """Reads and puts back what one loader draws from and counts.

    Args:
        loader: any that Lightning iterates over; of one that says by itself where it is, or is a library's,
            only the parts are looked into.
    """

    def __init__(self, loader: Any) -> None:
        is_own = not is_librarys(type(loader).__module__) and not hasattr(loader, "load_state_dict")
        self._holdings = Holdings(loader, **({"itself": loader} if is_own else {}))

    def now(self, *, looks: bool = True) -> Chance:
        """Return all of it as it is.

        Args:
            looks: for generators and counts that came to be lately, which takes some hundred microseconds.
        """
        return replace(self.own(looks=looks), everywhere=rng.capture())

    def own(self, *, looks: bool = True) -> Chance:
        """Return what is the loader's own."""
        holds = self._holdings.read(looks=looks)
        return Chance(None, holds, {path: one.epoch for path, one in self._told().items()})

    def generators(self) -> list[Any]:
        """Return the generators that were there when it was read last."""
        return list(self._holdings.generators.values())

    def put_back(self, chance: Chance, *, everywhere: bool = True, but: Collection[int] = ()) -> None:
        """Let the loader draw from it, and count on.

        Args:
            chance: of this loader, or of its like in an earlier life.
            everywhere: and all else that draws from the global generators.
            but: the `id` of generators that stay as they are.
        """
        if everywhere and chance.everywhere is not None:
            rng.restore(chance.everywhere)
        told = self._told()
        for path, epoch in chance.epochs.items():
            if path in told:
                told[path].set_epoch(epoch)
        # What a program's own sampler has counted since it was told is among these.
        mine = self._holdings.generators
        kept = {p: s for p, s in chance.held["generators"].items() if id(mine.get(p)) not in but}
        self._holdings.put(chance.held | {"generators": kept})

    def filled(self, *chances: Chance) -> list[Chance]:
        """Return each with all that was counted in one of them."""
        helds = self._holdings.filled(*(one.held for one in chances))
        return [replace(one, held=holds) for one, holds in zip(chances, helds, strict=True)]

    def _told(self) -> dict[str, Any]:
        # Nothing is asked but what has both: others may raise, or open something, where they are asked.
        return {
            path: one
            for path, one in self._holdings.owners.items()
            if hasattr(type(one), "set_epoch")
            and ("epoch" in vars(one) or hasattr(type(one), "epoch"))
            and type(one.epoch) is int
        }
