# SPDX-License-Identifier: Apache-2.0
"""Where tensors lie that many ranks have written: what is refused, whoever has written the manifest."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from spotwatch.errors import CheckpointCorrupt
from spotwatch.train.ranks.catalogue import Catalogue, names_in
from spotwatch.train.state import tensors

torch = pytest.importorskip("torch")

SOUND: dict[str, Any] = {
    "tensors": {
        "model/w": {
            "dtype": "F32",
            "shape": [4, 2],
            "pieces": [[[0, 0], [3, 2], 0, 64, 88], [[3, 0], [1, 2], 1, 8, 16]],
        },
        "model/n": {"dtype": "I64", "shape": [], "pieces": [[[], [], 1, 0, 8]]},
        "model/none": {"dtype": "BF16", "shape": [0, 5], "pieces": []},
    },
    "own": [{"rng/torch": ["U8", [16], 100, 116]}, {}],
}


def test_it_comes_back_as_it_was() -> None:
    """The form in the manifest says everything."""
    assert Catalogue.from_json(SOUND, 2).to_json() == SOUND


def change(*path: object, to: object) -> Callable[[dict[str, Any]], None]:
    """Return what changes one place of a catalogue."""

    def apply(value: Any) -> None:
        for key in path[:-1]:
            value = value[key]
        value[path[-1]] = to

    return apply


W = ("tensors", "model/w")


@pytest.mark.parametrize(
    "damage",
    [
        change(*W, "pieces", 1, 0, to=[2, 0]),  # overlaps
        change(*W, "pieces", 1, 0, to=[4, 0]),  # reaches out of the tensor
        change(*W, "shape", to=[5, 2]),  # a row is missing
        change(*W, "shape", to=[4, -2]),
        change(*W, "shape", to=[8]),
        change(*W, "dtype", to="F64"),  # twice the bytes
        change(*W, "dtype", to="pickle"),
        change(*W, "pieces", 0, 2, to=2),  # a rank that was not there
        change(*W, "pieces", 0, 2, to=-1),
        change(*W, "pieces", 0, 2, to=True),
        change(*W, "pieces", 0, 3, to=-24),
        change(*W, "pieces", 0, 4, to=96),  # more bytes than elements
        change(*W, "pieces", 0, 1, to=[3, 2.0]),
        change(*W, "pieces", 0, to=[[0, 0], [3, 2], 0, 64]),
        change(*W, "pieces", to=None),
        change("own", to=[{}]),
        change("own", 0, to=[]),
        change("own", 0, "rng/torch", to=["U8", [15], 100, 116]),
        change("own", 0, "rng/torch", to=["U8", [16], -16, 0]),
        change("tensors", to=[]),
    ],
)
def test_what_does_not_fit_is_refused(damage: Callable[[dict[str, Any]], None]) -> None:
    """Gaps, overlaps, places out of bounds and other forms are found before a byte is asked for."""
    value = copy.deepcopy(SOUND)
    damage(value)
    with pytest.raises(CheckpointCorrupt, match="no catalogue of tensors"):
        Catalogue.from_json(value, 2)


@pytest.mark.parametrize("value", [None, [], "x", {}, {"tensors": {}}])
def test_other_forms_are_refused(value: Any) -> None:
    """Anything else in its place is no catalogue."""
    with pytest.raises(CheckpointCorrupt, match="no catalogue of tensors"):
        Catalogue.from_json(value, 1)


def test_a_file_of_one_process_is_a_catalogue_too() -> None:
    """Each tensor of a whole file is one piece, where the file's header says."""
    layout = tensors.plan({"a": torch.zeros(2, 3), "b": torch.zeros((), dtype=torch.int64)})
    catalogue = Catalogue.of_file(layout)
    places = {place.name: (place.begin, place.end) for place in layout.places}
    assert {name: (entry.shape, entry.dtype) for name, entry in catalogue.tensors.items()} == {
        "a": ((2, 3), "F32"),
        "b": ((), "I64"),
    }
    for name, entry in catalogue.tensors.items():
        (piece,) = entry.pieces
        assert (piece.begin, piece.end) == places[name]
        assert (piece.rank, piece.sizes) == (0, entry.shape)
    assert Catalogue.from_json(catalogue.to_json(), 1) == catalogue


def test_the_tensors_that_state_names_are_found() -> None:
    """Wherever they stand in it, and nothing else that looks like one."""
    state = {
        "a": {"$tensor": "one"},
        "b": [{"$tuple": [{"$tensor": "two"}]}, {"$tensor": "one"}],
        "$x": "$tensor",
    }
    assert list(names_in(state)) == ["one", "two", "one"]
