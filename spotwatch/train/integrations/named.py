# SPDX-License-Identifier: Apache-2.0
"""What a function or class of a program uses: closures, defaults, what it names of the program's modules.

Code is read, not run: comprehensions and inner functions are part of the function around them. Libraries are
not followed, but for the random generators that their functions name.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from spotwatch.train.integrations.generators import is_generator

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_LIBRARIES = frozenset(
    (
        *("torch", "torchdata", "torchvision", "torchaudio", "lightning", "pytorch_lightning", "spotwatch"),
        *("accelerate", "transformers", "datasets", "tokenizers", "trl", "peft", "safetensors"),
        *("huggingface_hub", "fsspec", "tqdm", "numpy", "scipy", "pandas", "pyarrow", "sklearn", "PIL"),
    )
)
"""Libraries whose samplers and datasets count nothing that `set_epoch` does not set."""


def is_librarys(module: str) -> bool:
    """Tell whether a module, by its name, is of one of these libraries or of Python's."""
    top = module.partition(".")[0]
    return top in _LIBRARIES or top in sys.stdlib_module_names


def used(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Return what a function closes over, takes by default, has as attributes, and names; each by a name."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # it is not bound yet
    yield from ((f"default{number}", one) for number, one in enumerate(function.__defaults__ or ()))
    yield from (function.__kwdefaults__ or {}).items()
    yield from vars(function).items()
    names = list(dict.fromkeys(_names(function.__code__)))
    home = function.__module__ or "__main__"
    yield from _of_module(function.__globals__, names, home, [])


def of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """Return what the program's classes among its bases define: functions, and values that may hold chance.

    Of what several define the nearest comes by its name alone.
    """
    known = set()
    for base in kind.__mro__:
        if is_librarys(base.__module__):
            continue
        for name, item in vars(base).items():
            one = _function(item)
            if one is None and (name.startswith("__") or hasattr(type(item), "__get__")):
                continue
            yield f"{base.__name__}.{name}" if name in known else name, item if one is None else one
            known.add(name)


def methods(function: Any, kind: type) -> Iterator[tuple[str, Any]]:
    """Return what a method names of its class, by its name, and what that names, and so on."""
    defined, waiting = dict(of_class(kind)), [function]
    while waiting:
        item = waiting.pop()
        names = set(_names(item.__code__)) if issubclass(type(item), FunctionType) else set()
        for name in [name for name in defined if name.rpartition(".")[2] in names]:
            item = defined.pop(name)
            yield name, item
            waiting.append(item)


def is_programs(module: str | None, beside: str) -> bool:
    """Tell whether a module is one of the program's, or of the same package as another one.

    Args:
        module: its name.
        beside: the name of the other one.
    """
    module = module or "__main__"
    if is_librarys(module):
        return False
    file = str(getattr(sys.modules.get(module), "__file__", ""))
    return "-packages" not in file or _package(module) == _package(beside)


def _of_module(
    space: dict[str, Any], names: list[str], home: str, passed: list[ModuleType]
) -> Iterator[tuple[str, Any]]:
    for name in names:
        # A function may import what it names: then the name is a module's.
        value: Any = space.get(name, None if passed else sys.modules.get(name))
        if issubclass(type(value), ModuleType):
            if value not in passed and is_programs(value.__name__, home):
                inner = _of_module(vars(value), names, home, [*passed, value])
                yield from ((f"{name}.{one}", item) for one, item in inner)
        elif is_generator(value):
            yield name, value
        elif issubclass(type(value), (FunctionType, type)):
            if is_programs(value.__module__, home):
                yield name, value
        elif not issubclass(type(value), _PLAIN) and not is_librarys(home):
            yield name, value


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _function(item: Any) -> FunctionType | None:
    """Return the function of what a class defines, if it is or wraps one."""
    if issubclass(type(item), property):
        item = item.fget
    elif issubclass(type(item), functools.cached_property):
        item = item.func
    elif issubclass(type(item), (staticmethod, classmethod)):
        item = item.__func__
    return item if issubclass(type(item), FunctionType) else None


def _package(module: str) -> str:
    if module == "__main__":
        # Started as `python -m`, it is one of a package.
        module = getattr(getattr(sys.modules[module], "__spec__", None), "name", None) or module
    return module.partition(".")[0]
