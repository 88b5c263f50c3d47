# SPDX-License-Identifier: Apache-2.0
"""Which random generators and counted numbers can be reached from some objects, each by where it is.

Attributes, short lists and dicts, and what functions close over, take by default or use of their module are
followed; libraries' models, tokenizers and tables are not. It reads no state and changes none.
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

from spotwatch.train.integrations.generators import is_generator

_MOST_OBJECTS = 500
_MOST_ITEMS = 64
"""What is longer is data."""
_NAMES = ("torch", "accelerate", "transformers", "datasets", "trl", "torchdata", "numpy", "builtins")
"""Libraries whose samplers and datasets count nothing that `set_epoch` does not set."""
_CLOSED = (
    *("torch.nn", "torch._", "transformers.models.", "transformers.tokenization", "transformers.modeling"),
    *("transformers.trainer.", "tokenizers", "datasets.table", "datasets.features", "pyarrow", "pandas"),
    *("threading", "logging", "multiprocessing", "pathlib"),
)
"""Modules, some of whose objects are large, in which nothing draws samples."""
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
        if owner is None or vars(owner).get(name, self) is not None:
            return None
        return Slot(None, owner, name)


def reach(roots: dict[str, Any]) -> Reached:
    """Follow these, all that is near before what is far, up to some hundred objects."""
    reached = Reached()
    seen = {id(one) for one in _global_generators()}
    waiting = deque((name, Slot(root, None, name)) for name, root in roots.items())
    while waiting and len(seen) < _MOST_OBJECTS:
        path, slot = waiting.popleft()
        value = slot.value
        if type(value) in (bool, int, float):
            if slot.owner is not None and _counts(slot.owner):
                reached.numbers[path] = slot
            continue
        if value is None or isinstance(value, (str, bytes, type, ModuleType)) or id(value) in seen:
            continue
        seen.add(id(value))
        if is_generator(value):
            reached.generators[path] = slot
            continue
        if hasattr(value, "__dict__") and not isinstance(value, (FunctionType, partial)):
            reached.owners[path] = value
        waiting.extend((f"{path}.{part.name}", part) for part in _parts(value))
    return reached


def _parts(value: Any) -> Iterator[Slot]:
    if isinstance(value, (list, tuple, dict)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        if len(value) <= _MOST_ITEMS:
            yield from (Slot(item, None, str(name)) for name, item in items)
    elif isinstance(value, (partial, MethodType)):
        names = ("func", "args", "keywords") if isinstance(value, partial) else ("__self__", "__func__")
        yield from (Slot(getattr(value, name), None, name) for name in names)
    elif isinstance(value, FunctionType):
        yield from _used(value)
    elif hasattr(value, "__dict__"):
        yield from _attributes(value)


def _attributes(value: Any) -> Iterator[Slot]:
    is_closed = _is_closed(value)
    for name, item in list(vars(value).items()):
        if not is_closed or is_generator(item):
            yield Slot(item, value, name)
    if not is_closed and not _is_librarys(value):
        yield from (Slot(getattr(type(value), name, None), None, name) for name in _METHODS)


def _used(function: FunctionType) -> Iterator[Slot]:
    """Return what a function closes over and takes by default, and the generators of its module it names."""
    code, names = function.__code__, function.__globals__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield Slot(cell.cell_contents, None, name)
        except ValueError:
            continue  # it is not bound yet
    yield from (Slot(one, None, f"default{number}") for number, one in enumerate(function.__defaults__ or ()))
    yield from (Slot(one, None, name) for name, one in (function.__kwdefaults__ or {}).items())
    used = ((name, names.get(name)) for name in code.co_names)
    yield from (Slot(one, None, name) for name, one in used if is_generator(one))


def _counts(owner: Any) -> bool:
    """Tell whether it is a program's own sampler, dataset or function."""
    kind = type(owner)
    return not (_is_librarys(owner) or _is_closed(owner)) and any(hasattr(kind, name) for name in _METHODS)


def _is_librarys(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in _NAMES


def _is_closed(value: Any) -> bool:
    return any(f"{kind.__module__}.".startswith(_CLOSED) for kind in type(value).__mro__)


def _global_generators() -> list[Any]:
    """Return those that are saved as the global ones."""
    numpy = sys.modules.get("numpy")
    legacy = [] if numpy is None else [numpy.random.mtrand._rand]  # noqa: SLF001 - it has no public name
    return [random._inst, sys.modules["torch"].default_generator, *legacy]  # noqa: SLF001 - likewise
