# SPDX-License-Identifier: Apache-2.0
"""Where each tensor of a checkpoint lies that many ranks have written: the manifest's `tensors`, checked.

A tensor may lie in pieces in several files. Those that belong to one rank alone are listed by rank. No byte
of a tensor is read here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spotwatch.errors import CheckpointCorrupt
from spotwatch.model import JSON
from spotwatch.train.state import tensors
from spotwatch.train.state.tensors import Layout, Place


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a tensor, and where its elements lie in row order."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    rank: int
    """Whose file holds it."""
    begin: int
    """In the file."""
    end: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor, in pieces that do not overlap and leave nothing out."""

    dtype: str
    """Its name in safetensors."""
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All tensors of a checkpoint."""

    tensors: Mapping[str, Entry]
    """Of all ranks together, by name."""
    own: Sequence[Mapping[str, Place]]
    """Of each saved rank alone, by name."""

    def to_json(self) -> JSON:
        """Return the form that the manifest keeps."""
        return {
            "tensors": {
                name: {
                    "dtype": entry.dtype,
                    "shape": list(entry.shape),
                    "pieces": [
                        [list(p.offsets), list(p.sizes), p.rank, p.begin, p.end] for p in entry.pieces
                    ],
                }
                for name, entry in self.tensors.items()
            },
            "own": [own_to_json(places) for places in self.own],
        }

    @classmethod
    def from_json(cls, value: JSON, world_size: int) -> Catalogue:
        """Return the catalogue in a manifest.

        Raises:
            CheckpointCorrupt: it is none, or a tensor has gaps, overlaps, or reaches out of its place.
        """
        try:
            if not isinstance(value, dict):
                raise TypeError(f"an object is wanted, not {type(value).__name__}")
            own = [own_from_json(places) for places in value["own"]]
            if len(own) != world_size:
                raise ValueError(f"the own tensors of {len(own)} ranks, not {world_size}")
            entries = {name: _entry(name, row, world_size) for name, row in value["tensors"].items()}
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointCorrupt(f"no catalogue of tensors: {error!r}") from error
        return cls(entries, own)

    @classmethod
    def of_file(cls, layout: Layout) -> Catalogue:
        """Return the catalogue of a checkpoint that one process wrote into one file."""
        return cls(
            {
                place.name: Entry(
                    place.dtype,
                    place.shape,
                    (Piece((0,) * len(place.shape), place.shape, 0, place.begin, place.end),),
                )
                for place in layout.places
            },
            [{}],
        )


def own_to_json(places: Mapping[str, Place]) -> dict[str, JSON]:
    """Return the form of one rank's own tensors."""
    return {name: [p.dtype, list(p.shape), p.begin, p.end] for name, p in places.items()}


def own_from_json(value: JSON) -> dict[str, Place]:
    """Return one rank's own tensors; raise `ValueError` or the like for anything else."""
    if not isinstance(value, dict):
        raise TypeError("own tensors are no object")
    places = {}
    for name, (dtype, shape, begin, end) in value.items():
        _expect_room(name, dtype, _sizes(shape), begin, end)
        places[name] = Place(name, dtype, tuple(shape), begin, end)
    return places


def names_in(state: JSON) -> Iterator[str]:
    """Yield the names of the tensors that encoded state refers to; one may come more than once."""
    if isinstance(state, list):
        for item in state:
            yield from names_in(item)
    elif isinstance(state, dict):
        if state.keys() == {"$tensor"}:
            yield str(state["$tensor"])
        else:
            for item in state.values():
                yield from names_in(item)


def _entry(name: str, row: Mapping[str, Any], world_size: int) -> Entry:
    shape = _sizes(row["shape"])
    pieces = tuple(
        Piece(_sizes(offsets), _sizes(sizes), rank, begin, end)
        for offsets, sizes, rank, begin, end in row["pieces"]
    )
    for piece in pieces:
        _expect_room(name, row["dtype"], piece.sizes, piece.begin, piece.end)
        if type(piece.rank) is not int or not 0 <= piece.rank < world_size:
            raise ValueError(f"{name!r} lies in the file of rank {piece.rank} of {world_size}")
        box = zip(piece.offsets, piece.sizes, shape, strict=True)
        if any(offset + size > whole for offset, size, whole in box):
            raise ValueError(f"{name!r} of shape {shape} has a piece at {piece.offsets} of {piece.sizes}")
    # With as many elements as the tensor and no two in one place, nothing is left out.
    if sum(math.prod(piece.sizes) for piece in pieces) != math.prod(shape) or _overlap(pieces):
        raise ValueError(f"the pieces of {name!r} do not make a tensor of shape {shape}")
    return Entry(row["dtype"], shape, pieces)


def _overlap(pieces: Sequence[Piece]) -> bool:
    # In order of the first row, only pieces that begin before this one ends can meet it.
    full = sorted((piece for piece in pieces if math.prod(piece.sizes)), key=lambda piece: piece.offsets)
    for index, one in enumerate(full):
        for other in full[index + 1 :]:
            if one.offsets and other.offsets[0] >= one.offsets[0] + one.sizes[0]:
                break
            sides = zip(one.offsets, one.sizes, other.offsets, other.sizes, strict=True)
            if all(a < b + m and b < a + n for a, n, b, m in sides):
                return True
    return False


def _expect_room(name: str, dtype: str, sizes: tuple[int, ...], begin: int, end: int) -> None:
    if not all(type(n) is int and n >= 0 for n in (begin, end)):
        raise ValueError(f"{name!r} has a negative or fractional place")
    if end - begin != math.prod(sizes) * _element_bytes(dtype):
        raise ValueError(f"{name!r}: {end - begin} bytes for {sizes} of {dtype!r}")


@functools.cache
def _element_bytes(dtype: str) -> int:
    return tensors.view(bytearray(), Place("", dtype, (0,), 0, 0)).element_size()


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
        raise ValueError(f"{str(value)[:80]} is no shape")
    return tuple(value)
