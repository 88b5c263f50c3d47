# SPDX-License-Identifier: Apache-2.0
"""Python values as strict JSON and back, exactly: tuples, NaN, bytes, big integers, arrays of numbers.

Nothing that it reads can run code: it builds values of a fixed list of types and refuses everything else.
Tensors are left to the caller, who stores them elsewhere and names them here.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from spotwatch.errors import CheckpointCorrupt, ConfigError
from spotwatch.model import JSON

# Readers in other languages hold integers in doubles, exact up to here.
_EXACT_INT = 2**53
_DEEPEST = 100
# Booleans, integers, floats and complex numbers; never objects, whose bytes would be a pickle.
_NUMBERS = re.compile(r"[<>|=]?[biufc]\d{1,2}")
# A factory is code. These are known by name, so that reading one can run nothing else.
_FACTORIES: dict[str, type] = {t.__name__: t for t in (bool, bytes, dict, float, int, list, set, str, tuple)}
_CONTAINERS = (dict, list, tuple, set, frozenset)
_HEX = re.compile(r"-?0x[0-9a-f]+")

SaveTensor = Callable[[Any, str], str | None]
"""Take a value and its path; return the name it is stored under, or None when it is no tensor."""
LoadTensor = Callable[[str], Any]
"""Return the tensor of a name; raise KeyError when there is none."""


def encode(value: object, path: str, save_tensor: SaveTensor, *, depth: int = 0) -> JSON:
    """Return `value` as JSON that `decode` turns back into an equal value of equal type.

    Raises:
        ConfigError: something in it has no safe form; the message names its path.
    """
    if depth > _DEEPEST:
        raise ConfigError(f"{path}: nested more than {_DEEPEST} deep, or it contains itself")
    if value is None or type(value) in (bool, str):
        return value  # type: ignore[return-value]  # mypy cannot see through type()
    if type(value) in _SCALARS:
        return _SCALARS[type(value)](value)
    name = save_tensor(value, path)
    if name is not None:
        return {"$tensor": name}
    if isinstance(value, _CONTAINERS):
        return _container(value, path, save_tensor, depth + 1)
    if type(value).__module__ == "numpy":
        return _numpy(value, path)
    raise ConfigError(
        f"{path}: cannot save a {type(value).__module__}.{type(value).__qualname__}; state_dict() may hold "
        f"tensors, numbers, text, bytes, None, number arrays, and lists, tuples, sets and dicts of these"
    )


_SCALARS: dict[type, Callable[[Any], JSON]] = {
    int: lambda value: value if abs(value) <= _EXACT_INT else {"$int": hex(value)},
    float: lambda value: value if math.isfinite(value) else {"$float": repr(value)},
    bytes: lambda value: {"$bytes": base64.b64encode(value).decode("ascii")},
}


def _container(value: Any, path: str, save: SaveTensor, depth: int) -> JSON:
    def items(values: Iterable[object]) -> list[JSON]:
        return [encode(item, f"{path}/{i}", save, depth=depth) for i, item in enumerate(values)]

    def pairs() -> list[JSON]:
        return [
            [encode(k, f"{path}/key", save, depth=depth), encode(v, f"{path}/{_shown(k)}", save, depth=depth)]
            for k, v in value.items()
        ]

    def mapping() -> JSON:
        if all(type(k) is str and not k.startswith("$") for k in value):
            return {k: encode(v, f"{path}/{k}", save, depth=depth) for k, v in value.items()}
        return {"$dict": pairs()}

    def ordered() -> JSON:
        # torch keeps the versions of its modules in an attribute of the mapping.
        extra = getattr(value, "_metadata", None)
        return {"$ordered": [pairs(), encode(extra, f"{path}/_metadata", save, depth=depth)]}

    def unordered() -> list[JSON]:
        # In the same order each time, whatever the hashes.
        return sorted(items(value), key=json.dumps)

    kind = type(value)
    known: dict[type, Callable[[], JSON]] = {
        dict: mapping,
        list: lambda: items(value),
        tuple: lambda: {"$tuple": items(value)},
        OrderedDict: ordered,
        defaultdict: lambda: {"$default": [_factory(value.default_factory, path), pairs()]},
        Counter: lambda: {"$counter": pairs()},
        set: lambda: {"$set": unordered()},
        frozenset: lambda: {"$frozenset": unordered()},
    }
    if kind in known:
        return known[kind]()
    if kind.__module__ == "torch" and kind.__name__ == "Size":
        return {"$size": items(value)}
    plain = next(base.__name__ for base in kind.__mro__ if base in _CONTAINERS)
    raise ConfigError(
        f"{path}: cannot save a {kind.__module__}.{kind.__qualname__}; turn it into a plain {plain}"
    )


def _factory(factory: object, path: str) -> str | None:
    if factory is None:
        return None
    for name, known in _FACTORIES.items():
        if factory is known:
            return name
    told = getattr(factory, "__qualname__", type(factory).__qualname__)
    raise ConfigError(
        f"{path}: cannot save a collections.defaultdict whose factory is {told}; turn it into a plain dict, "
        f"or let the factory be one of {', '.join(_FACTORIES)}"
    )


def _shown(key: object) -> str:
    try:
        return str(key)
    except ValueError:  # Python prints no integer of more than 4300 digits
        return f"<{type(key).__name__}>"


def _numpy(value: Any, path: str) -> JSON:
    text = value.dtype.str if hasattr(value, "dtype") else ""
    is_array = type(value).__name__ == "ndarray"
    # Subclasses of arrays (matrix, memmap) would come back as something else.
    is_known = is_array or any(base.__name__ == "generic" for base in type(value).__mro__)
    if not is_known or _NUMBERS.fullmatch(text) is None:
        raise ConfigError(f"{path}: cannot save a numpy {type(value).__name__} of {text or 'no'} dtype")
    tag = "$array" if is_array else "$scalar"
    data = base64.b64encode(value.tobytes()).decode("ascii")
    return {tag: [text, list(value.shape), data]}


def decode(value: JSON, load_tensor: LoadTensor) -> Any:
    """Return what `encode` was given.

    Raises:
        CheckpointCorrupt: it is no output of `encode`.
    """
    try:
        return _decode(value, load_tensor)
    except (KeyError, ValueError, TypeError, OverflowError, RecursionError, binascii.Error) as error:
        raise CheckpointCorrupt(f"state is not as spotwatch writes it: {error!r}") from error


def _decode(value: JSON, load: LoadTensor) -> Any:
    if isinstance(value, list):
        return [_decode(item, load) for item in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    if not tag.startswith("$"):
        return {k: _decode(v, load) for k, v in value.items()}
    (body,) = value.values()
    return _READERS[tag](body, load)


def _pairs(body: Any, load: LoadTensor) -> list[tuple[Any, Any]]:
    return [(_decode(k, load), _decode(v, load)) for k, v in body]


def _ordered(body: Any, load: LoadTensor) -> Any:
    pairs, extra = body
    result: OrderedDict[Any, Any] = OrderedDict(_pairs(pairs, load))
    if extra is not None:
        result._metadata = _decode(extra, load)  # type: ignore[attr-defined]  # noqa: SLF001 - torch's own name for it
    return result


def _array(body: Any, _load: LoadTensor) -> Any:
    import numpy as np  # noqa: PLC0415 - only where a checkpoint holds arrays

    text, shape, data = body
    if _NUMBERS.fullmatch(text) is None:
        raise ValueError(f"dtype {text!r}")
    return np.frombuffer(base64.b64decode(data, validate=True), dtype=text).reshape(shape).copy()


def _default(body: Any, load: LoadTensor) -> Any:
    name, pairs = body
    return defaultdict(None if name is None else _FACTORIES[name], _pairs(pairs, load))


def _size(body: Any, _load: LoadTensor) -> Any:
    import torch  # noqa: PLC0415 - only where a checkpoint holds a shape of torch's

    return torch.Size(body)


def _int(body: Any, _load: LoadTensor) -> int:
    # Hexadecimal, which has no limit of digits; decimal is what earlier builds wrote.
    return int(body, 16 if _HEX.fullmatch(body) else 10)


def _float(body: Any, _load: LoadTensor) -> float:
    if body not in ("nan", "inf", "-inf"):
        raise ValueError(f"float {body!r}")
    return float(body)


_READERS: dict[str, Callable[[Any, LoadTensor], Any]] = {
    "$int": _int,
    "$float": _float,
    "$bytes": lambda body, _: base64.b64decode(body, validate=True),
    "$tensor": lambda body, load: load(body),
    "$dict": lambda body, load: dict(_pairs(body, load)),
    "$ordered": _ordered,
    "$default": _default,
    "$counter": lambda body, load: Counter(dict(_pairs(body, load))),
    "$size": _size,
    "$tuple": lambda body, load: tuple(_decode(item, load) for item in body),
    "$set": lambda body, load: {_decode(item, load) for item in body},
    "$frozenset": lambda body, load: frozenset(_decode(item, load) for item in body),
    "$array": _array,
    "$scalar": lambda body, load: _array(body, load)[()],
}
