# SPDX-License-Identifier: Apache-2.0
"""The ways in which programs come by a random generator of their own when a batch is made.

`WAYS` has a function for each, which makes what a loader calls. It is loaded anew for each life.
"""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch

from tests.train.integrations.workers import drawing_other
from tests.train.integrations.workers.drawing_other import draw

RNG = np.random.default_rng(4)
SEVERAL: dict[str, list[Any]] = {"words": [np.random.default_rng(6), random.Random(6)]}


def in_comprehension(batch: list[int]) -> list[float]:
    """Draw in a comprehension, which is code of its own up to Python 3.11."""
    return [one + RNG.random() for one in batch]


def in_lambda(batch: list[int]) -> list[float]:
    """Draw in a function that is made within."""
    changed: Callable[[int], float] = lambda one: one + float(RNG.random())  # noqa: E731 - it is what is tried
    return [changed(one) for one in batch]


def by_helper(batch: list[int]) -> list[float]:
    """Draw in a function that a function names."""
    for number, one in enumerate(batch):
        if number:
            return [one + _twice()]
    return []


def _twice() -> float:
    return _once() + 1


def _once() -> float:
    return float(RNG.random())


def by_imported(batch: list[int]) -> list[float]:
    """Draw in a function of another module."""
    return [one + draw() for one in batch]


def by_module(batch: list[int]) -> list[float]:
    """Draw by the generator of another module."""
    return [one + drawing_other.RNG.random() for one in batch]


def imported_within(batch: list[int]) -> list[float]:
    """Draw by what is imported in the function."""
    from tests.train.integrations.workers.drawing_other import RNG  # noqa: PLC0415 - it is what is tried

    return [one + RNG.random() for one in batch]


def from_collection(batch: list[int]) -> list[float]:
    """Draw by generators that a dict of the module has."""
    return [one + SEVERAL["words"][1].random() for one in batch]


class ByMethod:
    """Draws in a method of its own."""

    def __call__(self, batch: list[int]) -> list[float]:
        """Change all."""
        return [self.changed(one) for one in batch]

    def changed(self, one: int) -> float:
        """Change one."""
        return one + float(RNG.random())


class ByClass:
    """Has the generator in its class."""

    rng = np.random.default_rng(7)

    def __call__(self, batch: list[int]) -> list[float]:
        """Change all."""
        return [one + self.rng.random() for one in batch]


class Below(ByMethod):
    """Extends a method, and draws in that of its base."""

    def changed(self, one: int) -> float:
        """Change one."""
        return super().changed(one) + 1


class ByProperty:
    """Has it as a property, which a static method returns."""

    def __call__(self, batch: list[int]) -> list[float]:
        """Change all."""
        return [one + self.rng.random() for one in batch]

    @property
    def rng(self) -> Any:
        """Return it."""
        return self.get()

    @staticmethod
    def get() -> Any:
        """Return it."""
        return RNG


class Late:
    """Makes it when it is first needed."""

    rng: Any = None

    def __call__(self, batch: list[int]) -> list[float]:
        """Change all."""
        if self.rng is None:
            self.rng = random.Random(8)
        return [one + self.rng.random() for one in batch]


class Counts:
    """Counts passes from what its class has."""

    passes = 0
    limits: ClassVar[list[int]] = [3, 4]

    def __call__(self, batch: list[int]) -> list[float]:
        """Change all."""
        self.passes += 1
        return [one + random.Random(self.passes).random() for one in batch]


class Changes(torch.nn.Module):
    """Changes samples as those of torchvision do."""

    def forward(self, batch: list[int]) -> list[float]:
        """Change them."""
        return [one + float(RNG.random()) for one in batch]


class InThread(threading.Thread):
    """Is not looked into, as a Trainer is not, and has a function that makes batches."""

    weights = np.ones(2)

    def collate(self, batch: list[int]) -> list[float]:
        """Make one."""
        return [self.changed(one) for one in batch]

    def changed(self, one: int) -> float:
        """Change one sample."""
        return self.other() + one

    def other(self) -> float:
        """Return what is drawn."""
        return float(RNG.random())


def by_object_made_within(batch: list[int]) -> list[float]:
    """Draw in an object of a class that is named."""
    return ByMethod()(batch)


THE_ONE = ByMethod()


def by_object_of_module(batch: list[int]) -> list[float]:
    """Draw in an object that the module has."""
    return THE_ONE(batch)


def _noted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def noted(*args: Any) -> Any:
        return function(*args)

    return noted


@_noted
def decorated(batch: list[int]) -> list[float]:
    """Draw below a decorator."""
    return [one + RNG.random() for one in batch]


@functools.lru_cache(maxsize=1)
def _kept(one: int) -> float:
    return one + float(RNG.random())


def below_a_cache(batch: list[int]) -> list[float]:
    """Draw below a decorator that is no function."""
    return [_kept(one) for one in batch]


def has_attribute(batch: list[int]) -> list[float]:
    """Draw by an attribute of a function."""
    return [one + has_attribute.rng.random() for one in batch]  # type: ignore[attr-defined]


has_attribute.rng = random.Random(9)  # type: ignore[attr-defined]

WAYS: dict[str, Callable[[], Callable[[list[int]], list[float]]]] = {
    **{kind.__name__: kind for kind in (ByMethod, ByClass, Below, ByProperty, Late, Counts, Changes)},
    **{
        function.__name__: functools.partial(functools.partial, function)
        for function in (
            *(in_comprehension, in_lambda, by_helper, by_imported, by_module, imported_within),
            *(from_collection, by_object_made_within, by_object_of_module, decorated, below_a_cache),
            has_attribute,
        )
    },
    "InThread": lambda: InThread().collate,
}
