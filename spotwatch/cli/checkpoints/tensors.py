# SPDX-License-Identifier: Apache-2.0
"""Which tensors a checkpoint holds: from the manifest's catalogue, or from the head of each file.

Of a file only the head is fetched, and its checksum is not compared: that of a part can only be told from all
of it. It needs no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spotwatch.errors import CheckpointCorrupt
from spotwatch.model import JSON
from spotwatch.train.registry.manifest import File, Manifest
from spotwatch.train.store import Store

_LENGTH_BYTES = 8
# The reference reader's own limit.
_MOST_HEAD_BYTES = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor, as the checkpoint names it."""

    name: str
    dtype: str
    """Its name in safetensors."""
    shape: tuple[int, ...]
    size_bytes: int
    files: tuple[str, ...]
    """That hold a piece of it."""


def tensors_of(store: Store, manifest: Manifest) -> list[Tensor]:
    """Return all tensors of a checkpoint, the largest first.

    Raises:
        CheckpointCorrupt: a head, or the catalogue, is none.
        StoreError: the store refuses.
    """
    try:
        if manifest.tensors is not None:
            tensors = list(_of_catalogue(manifest.tensors, [file.name for file in manifest.files]))
        else:
            tensors = [one for file in manifest.files for one in _of_head(store, manifest.dir, file)]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise CheckpointCorrupt(
            f"{manifest.dir}: the list of its tensors cannot be read: {error!r}"
        ) from error
    return sorted(tensors, key=lambda one: (-one.size_bytes, one.name))


def _of_head(store: Store, directory: str, file: File) -> Iterator[Tensor]:
    if not file.size_bytes:
        return
    key = f"{directory}/{file.name}"
    length = int.from_bytes(_read(store, key, 0, min(_LENGTH_BYTES, file.size_bytes)), "little")
    if length > min(_MOST_HEAD_BYTES, file.size_bytes - _LENGTH_BYTES):
        raise ValueError(f"a head of {length} bytes in {file.name} of {file.size_bytes}")
    rows = json.loads(_read(store, key, _LENGTH_BYTES, length))
    for name, row in rows.items():
        if name != "__metadata__":
            begin, end = row["data_offsets"]
            yield _tensor(name, row["dtype"], row["shape"], end - begin, (file.name,))


def _of_catalogue(catalogue: JSON, files: list[str]) -> Iterator[Tensor]:
    if not isinstance(catalogue, dict):
        raise TypeError("no object")
    together: Any = catalogue["tensors"]
    for name, row in together.items():
        pieces = row["pieces"]
        size_bytes = sum(end - begin for _, _, _, begin, end in pieces)
        ranks = sorted({rank for _, _, rank, _, _ in pieces})
        yield _tensor(name, row["dtype"], row["shape"], size_bytes, tuple(files[rank] for rank in ranks))
    own: Any = catalogue["own"]
    for file, places in zip(files, own, strict=True):
        for name, (dtype, shape, begin, end) in places.items():
            yield _tensor(name, dtype, shape, end - begin, (file,))


def _tensor(name: Any, dtype: Any, shape: Any, size_bytes: Any, files: tuple[str, ...]) -> Tensor:
    if not isinstance(dtype, str) or not all(type(n) is int and n >= 0 for n in (size_bytes, *shape)):
        raise ValueError(f"{str(name)[:80]!r} has no dtype, or a negative or fractional size")
    return Tensor(name=name, dtype=dtype, shape=tuple(shape), size_bytes=size_bytes, files=files)


def _read(store: Store, key: str, begin: int, size_bytes: int) -> bytes:
    buffer = bytearray(size_bytes)
    if size_bytes:
        store.read_into(key, begin, memoryview(buffer))
    return bytes(buffer)


def objects_of(state: Mapping[str, JSON]) -> list[str]:
    """Return the names of what was tracked, on any rank; those that a rank alone has come last."""
    names: dict[str, None] = {}
    for of_rank in state.values():
        objects = of_rank.get("objects") if isinstance(of_rank, dict) else None
        if isinstance(objects, dict):
            names |= dict.fromkeys(objects)
    return list(names)
