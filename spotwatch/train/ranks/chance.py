# SPDX-License-Identifier: Apache-2.0
"""Which random state each rank takes where the ranks, or their meshes, are others than at the save.

Which ranks shall draw alike is seen from how the program has seeded them before it resumes: data parallel
ranks differ, those of one tensor parallel group do not. Seeding itself is in `resized`. Nothing is read here.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spotwatch.model import JSON
from spotwatch.train.ranks import resized
from spotwatch.train.ranks.catalogue import names_in
from spotwatch.train.state import tensors

if TYPE_CHECKING:
    import torch

_GLOBAL = "rng/"
Items = dict[str, JSON]
"""Encoded random states: `rng/<library>`, and the tracked generators by their names."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What one rank takes of one item."""

    source: int
    """The saved rank whose state it takes."""
    number: int | None = None
    """What to seed anew with, beside that state; None: the state itself."""


def chance_items(state: Mapping[str, Any], objects: Mapping[str, object]) -> Items:
    """Return the random states in one rank's encoded state."""
    chance = state.get("rng")
    found: Items = {_GLOBAL + key: value for key, value in chance.items()} if isinstance(chance, dict) else {}
    for name, thing in objects.items():
        if resized.is_generator(thing) and name in state["objects"]:
            found[name] = state["objects"][name]
    return found


def digests(items: Items, flat: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return a checksum of each item, with the tensors that it names."""
    result = {}
    for item, value in items.items():
        sum_ = zlib.crc32(repr(value).encode())
        for name in names_in(value):
            if name in flat:  # else one process has saved it, and there is nothing to compare
                sum_ = zlib.crc32(tensors.raw_bytes(flat[name]), sum_)
        result[item] = sum_
    return result


def choose(
    item: str, rank: int, now: Sequence[Mapping[str, int]], saved: Sequence[Mapping[str, int]]
) -> Choice | None:
    """Return what this rank takes of one item; None where nobody has saved it.

    Ranks whose states are equal now, before anything is restored, take the same. The first of those groups
    takes the first of the states that were saved, the second the second; when there are no more, a group has
    new ones, made from the first and its number.

    Args:
        item: its name.
        rank: of this process.
        now: the digests of each rank.
        saved: the digests of each saved rank.
    """
    different = list(dict.fromkeys(one[item] for one in saved if item in one))
    if not different:
        return None
    first_of = [next(r for r, one in enumerate(saved) if one.get(item) == state) for state in different]
    groups = list(dict.fromkeys(one.get(item) for one in now))
    group = groups.index(now[rank].get(item))
    return Choice(first_of[group]) if group < len(first_of) else Choice(first_of[0], group)


class Chance:
    """The random states that were saved, and what one rank makes of them.

    Args:
        objects: that are tracked here, by name.
        states: encoded, of each saved rank.
        own: tensors of single saved ranks, by rank and name.
    """

    def __init__(
        self,
        objects: Mapping[str, object],
        states: Sequence[Mapping[str, Any]],
        own: Mapping[tuple[int, str], torch.Tensor],
    ) -> None:
        self._objects = objects
        self._own = own
        self._items = [chance_items(one, objects) for one in states]
        self._saved = [
            digests(items, {name: tensor for (of, name), tensor in own.items() if of == rank})
            for rank, items in enumerate(self._items)
        ]

    def choices(self, rank: int, now: Sequence[Mapping[str, int]]) -> dict[str, Choice]:
        """Return what this rank takes of each item.

        Args:
            rank: of this process.
            now: the digests of each rank, before anything is restored.
        """
        names = dict.fromkeys(name for items in self._items for name in items)
        found = {name: choose(name, rank, now, self._saved) for name in names}
        return {name: choice for name, choice in found.items() if choice is not None}

    def taken(
        self, state: Mapping[str, Any], choices: Mapping[str, Choice]
    ) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Return the state of a rank with its choices in it, and the tensors that those name."""
        objects, chance = dict(state["objects"]), dict(state["rng"] or {})
        named: dict[str, torch.Tensor] = {}
        for item, choice in choices.items():
            value = self._items[choice.source][item]
            if item.startswith(_GLOBAL):
                chance[item.removeprefix(_GLOBAL)] = value
            else:
                objects[item] = value
            for name in names_in(value):
                if (choice.source, name) in self._own:
                    named[name] = self._own[choice.source, name]
        return {**state, "objects": objects, "rng": chance}, named

    def draw_anew(self, step: int, choices: Mapping[str, Choice]) -> None:
        """Seed what no saved rank has a state for, once the rest is restored.

        Args:
            step: of the checkpoint.
            choices: of this rank.
        """
        for item, choice in choices.items():
            if choice.number is not None:
                seed_state: JSON = [step, item, self._saved[choice.source][item]]
                is_global = item.startswith(_GLOBAL)
                generators = {} if is_global else {item: self._objects[item]}
                libraries = (item.removeprefix(_GLOBAL),) if is_global else ()
                resized.draw_anew(choice.number, seed_state, generators, libraries)
