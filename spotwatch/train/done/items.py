# SPDX-License-Identifier: Apache-2.0
"""The items of a batch: how often they can be gone through, which are out, what their number says of keys.

It knows neither shares nor outputs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from spotwatch.errors import ConfigError
from spotwatch.train.done.rows import Key

log = logging.getLogger("spotwatch.train")

Items = Iterable[Any] | Callable[[], Iterable[Any]]


@dataclass(eq=False, slots=True)
class _Round:
    """One going through items."""

    items: Items
    first: Key | None = None
    """The key of the first of them; None: nothing is known of it."""

    def is_as(self, other: _Round) -> bool:
        # By a key too: two tasks over the same items give them different ones.
        return self.first is not None and self.first == other.first and _are_same(self.items, other.items)


class Offered:
    """Which items a program has been given and has not added. `added` is for any thread."""

    def __init__(self) -> None:
        self._out: dict[Key, int] = {}
        self._gathered: set[Key] = set()
        self._latest: set[Key] = set()
        self._left_off: list[_Round] = []
        self.number = 0
        """How many times items were gone through."""
        self.seen = 0
        """How many items there were, in all that were gone through to the end."""

    @property
    def is_all_done(self) -> bool:
        """Tell whether all were gone through to the end, and each item that was given is added."""
        return not self._left_off and not self._out

    @property
    def left(self) -> int:
        """Return how many are given and not added."""
        return len(self._out)

    @property
    def ahead(self) -> int:
        """Return how many are given and not added, beside those that were given last."""
        return len(self._out.keys() - self._latest)

    def begin(self, items: Items) -> None:
        """Go through items, from their beginning."""
        self._left_off.append(_Round(items))
        self.number += 1
        self.restart()

    def meet(self, key: Key) -> None:
        """Note the key of the first item; that the same were left off before does not matter any more."""
        this = self._left_off.pop()
        this.first = key
        self._left_off = [*(one for one in self._left_off if not one.is_as(this)), this]

    def end(self, seen: int) -> None:
        """Note that these, so many, were gone through to the end."""
        self._left_off.pop()
        self.seen += seen

    def restart(self) -> None:
        """Drop what was gathered."""
        self._gathered = set()

    def gather(self, key: Key) -> bool:
        """Have a key among those that are given next; False: it is, or was given in this going through."""
        if key in self._gathered or self._out.get(key) == self.number:
            return False
        self._gathered.add(key)
        return True

    def give(self) -> None:
        """Note that what was gathered is given."""
        self._latest, self._gathered = self._gathered, set()
        for key in self._latest:
            self._out[key] = self.number

    def added(self, key: Key) -> None:
        """Note that one is added."""
        self._out.pop(key, None)

    def is_behind(self, key: Key) -> bool:
        """Tell whether others were given after this one, which is not added yet."""
        return key in self._out and key not in self._latest

    def forget(self, is_one: Callable[[Key], bool]) -> None:
        """Drop what another does now."""
        for key in list(self._out):
            if is_one(key):
                self._out.pop(key, None)


def passes_over(items: Items, *, again: bool) -> Callable[[], Iterable[Any]]:
    """Return what gives the items at each call.

    Args:
        items: or a function that returns an iterator over them.
        again: they will be gone through more than once.

    Raises:
        ConfigError: they cannot be.
    """
    if callable(items) and not hasattr(items, "__iter__"):
        return items
    if again and iter(items) is items:
        raise ConfigError(
            f"items is a {type(items).__name__}, which can be gone through once: a list in several shares "
            "goes through it more often; give a list, a range, a dataset, or a function that returns one"
        )
    return lambda: items


def warn_of_doubles(seen: int, known: int, left: int) -> None:
    """Say that some items cannot have had a key of their own. Only numbers are compared, as below.

    Args:
        seen: how many items were gone through.
        known: how many keys have an output.
        left: how many items are offered and not added.
    """
    twice = seen - known - left
    if twice > 0:
        log.warning("at least %d of %d items had a key that another has, and were passed over", twice, seen)


def warn_of_strangers(seen: int, known: int) -> None:
    """Say that the list has outputs of other items than those that a program has gone through, all told.

    Args:
        seen: how many items these were.
        known: how many keys have an output.
    """
    if seen < known:
        log.warning(
            "the list has outputs of at least %d keys that are not among these %d items: was it begun with "
            "others under this run_id?",
            *(known - seen, seen),
        )


def _are_same(one: Items, other: Items) -> bool:
    return one is other or (isinstance(one, range) and isinstance(other, range) and one == other)
