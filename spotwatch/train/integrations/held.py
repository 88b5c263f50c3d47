# SPDX-License-Identifier: Apache-2.0
"""What a loader holds that moves as it is read: random generators, and numbers that its parts count.

They are looked for in its sampler, dataset and `collate_fn`, in what these hold and what their functions use.
Data is not looked into, and what workers move is theirs. Numbers beside data that has changed (`shapes`) are
left as each life has them. It does not know when to look.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable
from typing import Any

from spotwatch.train.integrations.generators import is_generator, make_generator
from spotwatch.train.integrations.reach import is_programs, reach
from spotwatch.train.integrations.shapes import shape
from spotwatch.train.state import rng

log = logging.getLogger("spotwatch.train")

_SAMPLERS = ("batch_sampler", "sampler")
_PARTS = ("generator", *_SAMPLERS, "dataset", "collate_fn")

_COUNT_ALWAYS = ("generator", *_SAMPLERS, "collate_fn", "itself")
"""What holds no data, whatever else changes in it."""

Held = dict[str, Any]
"""The kinds and states of the generators, and the numbers that have moved, by where they are; and which parts
count what is of data that is not saved."""


class Holdings:
    """Reads and puts back what moves in one loader, and in what is evaluated.

    Args:
        loader: as Accelerate has prepared it, torch's or a program's; nothing of it has been read yet.
        others: what else is looked at, by name, as the datasets of evaluations.
    """

    def __init__(self, loader: Any, **others: Any) -> None:
        loader = getattr(loader, "base_dataloader", loader)
        self._roots = {name: getattr(loader, name, None) for name in _PARTS} | others
        self._reached = reach(self._roots)
        if not getattr(loader, "num_workers", 0):
            for owner in self._reached.owners.values():
                make_generator(owner)
            self._reached = reach(self._roots)
        # Of data, a flag tells what this process has opened or read already; another one has not.
        self._first = {
            path: slot.value
            for path, slot in self._reached.numbers.items()
            if type(slot.value) is not bool or path.startswith(_SAMPLERS)
        }
        # A stream is read anew from its beginning, by what it had counted then.
        streams = (name for name, root in self._roots.items() if _is_stream(root))
        self._count_always = {*_COUNT_ALWAYS, *streams}
        self._shapes = self._look_at_shapes()
        self._left: set[str] = set()
        self._there = self._reached.generators.keys()
        self._told: set[str] = set()
        self._readers: dict[str, tuple[Any, str, Callable[[], Any]]] = {}

    @property
    def owners(self) -> dict[str, Any]:
        """The objects that were looked into last, by where they are."""
        return self._reached.owners

    @property
    def generators(self) -> dict[str, Any]:
        """The generators that were found last, by where they are."""
        return {path: slot.now() for path, slot in self._reached.generators.items()}

    def read(self, *, looks: bool = True) -> Held:
        """Return the state of all generators, and the numbers that are others than at first.

        Args:
            looks: for them, which takes some hundred microseconds; else they are where they were.
        """
        if looks:
            self._reached = reach(self._roots)
            self._readers.clear()
            self._leave_changed()
        generators, numbers = {}, {}
        for path, slot in self._reached.generators.items():
            generator = slot.now()
            reader = self._readers.get(path)
            if reader is None or reader[0] is not generator:
                if not is_generator(generator):
                    continue
                reader = self._readers[path] = generator, _kind(generator), _known(generator)[0]
            generators[path] = [reader[1], reader[2]()]
        for path, slot in self._reached.numbers.items():
            value, first = slot.now(), self._first.get(path)
            # One that is of another kind now was looked up, not counted.
            if type(value) is type(first) and value != first:
                numbers[path] = value
        return {"generators": generators, "numbers": numbers, "left": sorted(self._left)}

    def filled(self, *helds: Held) -> list[Held]:
        """Return each with all numbers that have moved in one of them: other lives may begin with others."""
        moved = {path for held in helds for path in held["numbers"]}
        first = {path: self._first[path] for path in moved if path in self._first}
        return [held | {"numbers": first | held["numbers"]} for held in helds]

    def put(self, held: Held) -> None:
        """Make it so again; a generator that was not there yet is taken away, and will be made again."""
        reached = self._reached = reach(self._roots)
        self._leave_changed()
        self._left.update(held["left"])
        for path, first in self._first.items():
            if path in reached.numbers and _root(path) not in self._left:
                reached.numbers[path].replace(held["numbers"].get(path, first))
        for path in reached.generators.keys() - self._there - held["generators"].keys():
            reached.generators[path].replace(None)
        for path, (kind, state) in held["generators"].items():
            slot = reached.generators.get(path) or reached.empty(path)
            if slot is not None and slot.value is None:
                slot = slot.replace(_new(kind))
            if slot is None or _kind(slot.value) != kind:
                self._tell(path)
            else:
                _set_state(slot.value, state)

    def _look_at_shapes(self) -> dict[str, Any]:
        return {
            path: shape(owner)
            for path, owner in self._reached.owners.items()
            if _root(path) not in self._count_always and is_programs(owner)
        }

    def _leave_changed(self) -> None:
        now = self._look_at_shapes()
        for root in {_root(path) for path in now} - self._left:
            if any(now.get(path) != was for path, was in self._shapes.items() if _root(path) == root):
                self._left.add(root)
                log.info("numbers in the %s are of data it has read, so each life has its own", root)

    def _tell(self, path: str) -> None:
        if path not in self._told:
            log.warning(
                "the checkpoint has the state of a random generator at %s of the training data, where there "
                "is none of its kind now: what it drew is drawn otherwise",
                path,
            )
        self._told.add(path)


def _is_stream(data: Any) -> bool:
    return issubclass(type(data), sys.modules["torch"].utils.data.IterableDataset)


def _root(path: str) -> str:
    return path.partition(".")[0]


def plain(held: Held) -> Held:
    """Return it without tensors, as a checkpoint has it; where none is saved it need not be made."""
    generators = {
        path: [kind, bytes(state.numpy()) if hasattr(state, "numpy") else state]
        for path, (kind, state) in held["generators"].items()
    }
    return held | {"generators": generators}


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(state, bytes):
        state = sys.modules["torch"].frombuffer(bytearray(state), dtype=sys.modules["torch"].uint8)
    _known(generator)[1](state)


def _known(generator: Any) -> Any:
    return rng.adapter(generator)


def _kind(generator: Any) -> str:
    return type(getattr(generator, "bit_generator", generator)).__name__


def _new(kind: str) -> Any:
    """Return a generator of this kind."""
    if kind == "Random":
        return random.Random()  # noqa: S311 - a sampler's
    if kind == "Generator":
        return sys.modules["torch"].Generator()
    numpy = sys.modules["numpy"].random
    return numpy.RandomState() if kind == "RandomState" else numpy.Generator(getattr(numpy, kind)())
