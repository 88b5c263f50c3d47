# SPDX-License-Identifier: Apache-2.0
"""What the order of a Lightning loader may come from: generators, its own and everyone's, and sampler epochs.

It neither saves nor knows where in its epoch a loader is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from spotwatch.train.state import rng


@dataclass(frozen=True, slots=True)
class Chance:
    """All that the order of a loader may come from, at one moment."""

    everywhere: dict[str, Any] | None
    """The global generators; None: not these."""
    generators: list[Any]
    epochs: list[int]

    @classmethod
    def now(cls, loader: object) -> Chance:
        """Return all of it as it is."""
        return replace(cls.of(loader), everywhere=rng.capture())

    @classmethod
    def of(cls, loader: object) -> Chance:
        """Return what is the loader's own."""
        generators = [generator.get_state() for generator in _generators(loader)]
        return cls(None, generators, [sampler.epoch for sampler in _samplers_with_epochs(loader)])

    def fits(self, loader: object) -> bool:
        """Tell whether the loader has as many generators and samplers."""
        own = Chance.of(loader)
        return (len(own.generators), len(own.epochs)) == (len(self.generators), len(self.epochs))

    def put_back(self, loader: object, *, everywhere: bool = True) -> None:
        """Let the loader draw from it; `everywhere`: and all else that draws from the global generators."""
        if everywhere and self.everywhere is not None:
            rng.restore(self.everywhere)
        for generator, state in zip(_generators(loader), self.generators, strict=True):
            generator.set_state(state)
        for sampler, epoch in zip(_samplers_with_epochs(loader), self.epochs, strict=True):
            sampler.set_epoch(epoch)

    def to_plain(self) -> dict[str, Any]:
        """Return it as values that can be saved."""
        return {"everywhere": self.everywhere, "generators": self.generators, "epochs": self.epochs}


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
