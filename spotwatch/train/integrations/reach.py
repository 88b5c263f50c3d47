# SPDX-License-Identifier: Apache-2.0
"""Which random generators and counted numbers can be reached from some objects, each by where it is.

Attributes, short lists and dicts, and what functions and classes of the program use (`named`) are followed;
libraries' models, tokenizers and tables are not. It reads no state and changes none, and calls nothing of a
program's: what is a proxy, or made when it is asked for, is not asked.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

from spotwatch.train.integrations import named
from spotwatch.train.integrations.generators import is_generator

_MOST_OBJECTS = 500
_MOST_ITEMS = 64
"""What is longer is data."""
_CLOSED = (
    *("torch.nn", "torch._", "torch.optim", "transformers.models.", "transformers.tokenization"),
    *("transformers.modeling", "transformers.trainer.", "tokenizers", "datasets.table", "datasets.features"),
    *("pyarrow", "pandas", "threading", "logging", "multiprocessing", "pathlib"),
    *("lightning.pytorch.core", "lightning.pytorch.trainer", "lightning.pytorch.callbacks"),
    *("pytorch_lightning.core", "pytorch_lightning.trainer", "pytorch_lightning.callbacks"),
)
"""Modules, some of whose objects are large, in which nothing draws samples."""
_NUMBERS = (bool, int, float)
_PLAIN = (*_NUMBERS, str, bytes)
_METHODS = ("__call__", "__iter__", "__getitem__", "__getitems__")


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a value is; `owner` is None where it is no attribute."""

    value: Any
    owner: Any
    name: str

    def now(self) -> Any:
        """Return what is there now."""
        return self.value if self.owner is None else vars(self.owner).get(self.name)

    def replace(self, value: Any) -> Slot:
        """Put another value there, if it is an attribute, and return the slot of what is there now."""
        if self.owner is None:
            return self
        vars(self.owner)[self.name] = value
        return replace(self, value=value)


@dataclass(slots=True)
class Reached:
    """What was found; an object that is in several places has the nearest."""

    generators: dict[str, Slot] = field(default_factory=dict)
    numbers: dict[str, Slot] = field(default_factory=dict)
    owners: dict[str, Any] = field(default_factory=dict)
    """The objects whose attributes were looked at."""

    def empty(self, path: str) -> Slot | None:
        """Return the slot at this place if it is an attribute that is None."""
        place, _, name = path.rpartition(".")
        owner = self.owners.get(place)
        if owner is None or vars(owner).get(name, getattr(type(owner), name, self)) is not None:
            return None
        return Slot(None, owner, name)


def reach(roots: dict[str, Any]) -> Reached:
    """Follow these, all that is near before what is far, up to some hundred functions and as many objects."""
    reached = Reached()
    seen = {id(one) for one in _global_generators()}
    waiting = deque((name, Slot(root, None, name)) for name, root in roots.items())
    counts = {True: 0, False: 0}
    while waiting:
        path, slot = waiting.popleft()
        value = slot.value
        if type(value) in _NUMBERS:
            if slot.owner is not None and _counts(slot.owner):
                reached.numbers[path] = slot
            continue
        kind = type(value)
        if value is None or issubclass(kind, (str, bytes, ModuleType)) or id(value) in seen:
            continue
        seen.add(id(value))
        if is_generator(value):
            reached.generators[path] = slot
            continue
        # Data in small pieces hides no function.
        is_code = issubclass(kind, (FunctionType, MethodType, type))
        counts[is_code] += 1
        if counts[is_code] > _MOST_OBJECTS:
            continue
        if _has_attributes(value) and not issubclass(kind, (FunctionType, partial, type)):
            reached.owners[path] = value
        waiting.extend((f"{path}.{part.name}", part) for part in _parts(value))
    return reached


def is_programs(owner: Any) -> bool:
    """Tell whether it is an object of a class of the program's own."""
    return not (named.is_librarys(type(owner).__module__) or _closed(owner))


def _parts(value: Any) -> Iterator[Slot]:
    kind = type(value)
    if issubclass(kind, (list, tuple, dict)):
        for name, item in _items(value):
            if not issubclass(type(item), _PLAIN):
                yield Slot(item, None, str(name))
    elif issubclass(kind, (partial, MethodType)):
        names = ("func", "args", "keywords") if issubclass(kind, partial) else ("__self__", "__func__")
        yield from (Slot(getattr(value, name), None, name) for name in names)
        if issubclass(kind, MethodType):
            # All that its class has is followed too, but of a Trainer or a model.
            methods = named.methods(value.__func__, type(value.__self__))
            yield from (Slot(item, None, name) for name, item in methods)
    elif issubclass(kind, FunctionType):
        yield from (Slot(item, None, name) for name, item in named.used(value))
    elif issubclass(kind, type):
        if named.is_programs(value.__module__, "__main__"):
            yield from (Slot(item, None, name) for name, item in named.of_class(value))
    elif _has_attributes(value):
        yield from _attributes(value)


def _items(value: Any) -> list[tuple[Any, Any]]:
    """Return what a short list or dict holds; one of a program's or library's kind may make it when asked."""
    plain = next(kind for kind in (list, tuple, dict) if issubclass(type(value), kind))
    if plain.__len__(value) > _MOST_ITEMS:
        return []
    return list(dict.items(value)) if plain is dict else list(enumerate(plain.__iter__(value)))


def _has_attributes(value: Any) -> bool:
    """Tell whether it has some of its own; without asking it, for its `__getattr__` may do anything."""
    try:
        object.__getattribute__(value, "__dict__")
    except AttributeError:
        return False
    return True


def _attributes(value: Any) -> Iterator[Slot]:
    has, closed = vars(value), _closed(value)
    for name, item in list(has.items()):
        if not closed or is_generator(item):
            yield Slot(item, value, name)
    # Of torch's modules some change samples.
    if all(name.startswith("torch.nn") for name in closed):
        for name, item in named.of_class(type(value)):
            is_number = issubclass(type(item), _NUMBERS)
            if name not in has and (not closed or is_generator(item) or issubclass(type(item), FunctionType)):
                # A number that the class has is counted in the object.
                yield Slot(item, value if is_number else None, name)


def _counts(owner: Any) -> bool:
    """Tell whether it is a program's own sampler, dataset or function."""
    return is_programs(owner) and any(hasattr(type(owner), name) for name in _METHODS)


def _closed(value: Any) -> list[str]:
    """Return the modules of its classes in which nothing draws samples."""
    modules = (f"{kind.__module__}." for kind in type(value).__mro__)
    return [module for module in modules if module.startswith(_CLOSED)]


def _global_generators() -> list[Any]:
    """Return those that are saved as the global ones."""
    numpy = sys.modules.get("numpy")
    legacy = [] if numpy is None else [numpy.random.mtrand._rand]  # noqa: SLF001 - it has no public name
    return [random._inst, sys.modules["torch"].default_generator, *legacy]  # noqa: SLF001 - likewise
