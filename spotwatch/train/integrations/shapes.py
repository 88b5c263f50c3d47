# SPDX-License-Identifier: Apache-2.0
"""Whether objects hold other data than at first: then what they count is of that data, which is not saved.

A reader's number of its open file, or the size of a cache, is nothing that another life could begin with. It
compares what attributes are, not what they hold in depth, and changes nothing.
"""

from __future__ import annotations

import sys
import zlib
from typing import Any

from spotwatch.train.integrations.generators import is_generator

_ITEMS = 64
_BYTES = 4096
_NUMBERS = (bool, int, float)

Shape = dict[str, Any]
"""By the name of an attribute what it was."""


def shape(owner: Any) -> Shape:
    """Return what tells whether an attribute of an object is another one; not of numbers and generators."""
    return {
        name: _mark(value)
        for name, value in list(vars(owner).items())
        if not (value is None or issubclass(type(value), _NUMBERS) or is_generator(value))
    }


def _mark(value: Any) -> tuple[Any, ...]:
    kind = type(value)
    if issubclass(kind, (str, bytes)):
        return (value,)
    mark: tuple[Any, ...] = (id(value),)
    if issubclass(kind, (list, tuple, dict)):
        items = list(dict.values(value) if issubclass(kind, dict) else value[:_ITEMS])
        mark += (len(value), [id(one) for one in items[:_ITEMS]])
    elif issubclass(kind, (set, frozenset, bytearray)):
        mark += (len(value),)
    elif issubclass(kind, sys.modules["torch"].Tensor):
        mark += (value._version,)  # noqa: SLF001 - the count of writes, documented under no other name
    elif kind.__module__ == "numpy" and kind.__name__ == "ndarray" and not value.dtype.hasobject:
        some = value.reshape(-1)[: _BYTES // max(value.itemsize, 1)]
        mark += (value.shape, zlib.crc32(some.tobytes()))
    return mark
