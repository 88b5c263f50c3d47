# SPDX-License-Identifier: Apache-2.0
"""Which rows a dataset has, by a few of them: enough to tell another split of the same data from this one.

What is looked at are rows as they are stored: no transform of theirs runs, nothing is drawn, no image is
decoded. What is in a dataset of a program's own class is not known.
"""

from __future__ import annotations

import itertools
import sys
import zlib
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

_ROWS = 8
_KEPT, _READ = 64, 1024
"""How many pieces of a row are kept, those of the smallest checksums, and of how many that are read."""
_NUMBERS, _CHARACTERS = 16, 64
"""How many are one piece."""


def look(dataset: Any) -> list[bytes]:
    """Return what a few rows are made of, evenly over a dataset; nothing where its kind is not known.

    Known are `Dataset` of datasets, torch's `Subset`, `ConcatDataset` and `TensorDataset`, lists and tuples.
    The same rows give the same in each process and on each machine.
    """
    if not _is_known(dataset):
        return []
    try:
        last = max(len(dataset) - 1, 0)
        places = sorted({last * n // (_ROWS - 1) for n in range(_ROWS)})
        return [_digest(_row(dataset, place)) for place in places]
    except Exception:  # noqa: BLE001 - what is wrong with a row is the loader's to say, when it is wanted
        return []


def are_same(before: list[bytes], now: list[bytes]) -> bool:
    """Tell whether two datasets have the same rows, by what `look` returned; also where nothing tells.

    Rows may differ in a part, as by a date in a prompt, by a number that another processor has computed, or
    by a column: only pieces that one row alone has count, and of these and of the rows most must be there.
    """
    if not before or len(before) != len(now):
        return True
    rows = [set(array("I", row)) for row in before]
    times = Counter(itertools.chain.from_iterable(rows))
    votes = []
    for row, other in zip(rows, now, strict=True):
        its_own = {piece for piece in row if times[piece] == 1}
        if its_own:
            votes.append(2 * len(its_own.intersection(array("I", other))) >= len(its_own))
    return 2 * sum(votes) >= len(votes)


def _kind(library: str, name: str) -> Any:
    """Return a class of a library that is loaded; else one that nothing is of."""
    return getattr(sys.modules.get(library), name, _Nothing)


class _Nothing:
    pass


def _is_known(dataset: Any) -> bool:
    if isinstance(dataset, _kind("torch.utils.data", "Subset")):
        return True
    if isinstance(dataset, _kind("torch.utils.data", "ConcatDataset")):
        return all(map(_is_known, dataset.datasets))
    known = _kind("datasets", "Dataset"), _kind("torch.utils.data", "TensorDataset")
    return type(dataset) in (list, tuple) or isinstance(dataset, known)


def _row(dataset: Any, place: int) -> Any:
    if isinstance(dataset, _kind("torch.utils.data", "Subset")):
        place = int(dataset.indices[place])
        return _row(dataset.dataset, place) if _is_known(dataset.dataset) else f"row {place}"
    if isinstance(dataset, _kind("torch.utils.data", "ConcatDataset")):
        part = bisect_right(dataset.cumulative_sizes, place)
        first = dataset.cumulative_sizes[part - 1] if part else 0
        return _row(dataset.datasets[part], place - first)
    if isinstance(dataset, _kind("torch.utils.data", "TensorDataset")):
        return [tensor[place] for tensor in dataset.tensors]
    if type(dataset) in (list, tuple):
        return dataset[place]
    # What `dataset[place]` begins with, before it decodes, formats and transforms.
    table = sys.modules["datasets"].formatting.query_table(
        dataset.data,
        place,
        indices=dataset._indices,  # noqa: SLF001 - has no public name
    )
    return table.to_pylist()[0]


def _digest(row: Any) -> bytes:
    """Return the checksums of a row's pieces, whichever columns they are in."""
    sums = {zlib.crc32(piece) for piece in itertools.islice(_pieces(row), _READ)}
    return array("I", sorted(sums)[:_KEPT]).tobytes()


def _pieces(value: Any) -> Iterator[bytes]:
    if hasattr(value, "tolist"):  # torch's or numpy's
        value = value.tolist()
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, str):
        # Where a file lies may differ from machine to machine.
        text = value.rpartition("/")[2] if value.startswith("/") else value
        yield from (part.encode(errors="surrogatepass") for part in _cut(text, _CHARACTERS))
    elif _is_number(value):
        yield repr(value).encode()
    elif isinstance(value, (list, tuple)) and all(map(_is_number, value)):
        yield from (repr(list(part)).encode() for part in _cut(value, _NUMBERS))
    elif isinstance(value, (list, tuple, Mapping)):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _pieces(one)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _cut(value: Any, size: int) -> Iterator[Any]:
    """Cut it from its end: what comes first in a prompt may be longer in another life, as a date."""
    for end in range(len(value), 0, -size):
        yield value[max(end - size, 0) : end]
