# SPDX-License-Identifier: Apache-2.0
"""Copies into places: by one thread or several, all of them, and only for the layout they were made for."""

from __future__ import annotations

from typing import Any

import pytest

from spotwatch.train.state import tensors
from spotwatch.train.state.copying import Places
from spotwatch.train.state.found import Found

torch = pytest.importorskip("torch")


def _large() -> dict[str, Any]:
    # Beyond the size from which several threads copy.
    return {f"t{n}": torch.full((50_000 + n,), float(n)) for n in range(120)}


def _places(named: dict[str, Any]) -> Places:
    layout = tensors.plan(named)
    return Places(layout, memoryview(bytearray(layout.size_bytes)))


def test_several_threads_copy_everything() -> None:
    """Whatever thread copied a tensor, it is there, and once."""
    named = _large()
    places = _places(named)
    assert sum(len(share) for share in places._shares) == len(named)
    for shift in (0.0, 0.5):
        moved = {name: tensor + shift for name, tensor in named.items()}
        places.fill(moved)
        back = tensors.unpack(places.buffer, tensors.read(places.buffer))
        assert all(torch.equal(back[name], tensor) for name, tensor in moved.items())


def test_the_trainers_own_threads_are_left_alone() -> None:
    """Only the threads that copy give up torch's team."""
    before = torch.get_num_threads()
    named = _large()
    _places(named).fill(named)
    assert torch.get_num_threads() == before


def test_a_copy_that_fails_in_a_thread_fails_here() -> None:
    """An error is not lost with its thread."""
    named = _large()
    places = _places(named)
    with pytest.raises(RuntimeError):
        places.fill({**named, "t7": torch.zeros(3)})


def test_other_tensors_do_not_suit() -> None:
    """Another name, shape, dtype or number of tensors needs places of its own."""
    named = {"a": torch.ones(2, 3), "b": torch.ones(0)}
    places = _places(named)
    assert places.suit({"b": torch.zeros(0), "a": torch.zeros(3, 2).t()})
    for other in (
        {"a": torch.ones(2, 3)},
        {"a": torch.ones(2, 3), "c": torch.ones(0)},
        {"a": torch.ones(3, 2), "b": torch.ones(0)},
        {"a": torch.ones(2, 3).int(), "b": torch.ones(0)},
        {"a": torch.ones(2, 3), "b": torch.ones(0), "c": torch.ones(1)},
    ):
        assert not places.suit(other)


def test_one_memory_seen_in_one_way_is_stored_once() -> None:
    """Tied weights have one name; views, conjugates and empty ones keep their own."""
    base = torch.arange(6.0).view(2, 3)
    number = torch.tensor([1 + 2j])
    met = {
        "base": base,
        "tied": base.detach(),
        "parameter": torch.nn.Parameter(base),
        "part": base[:1],
        "turned": base.t(),
        "bits": base.view(torch.int32),
        "complex": number,
        "conjugate": number.conj(),
        "empty": torch.empty(0),
        "empty too": torch.empty(0),
    }
    found = Found()
    names = {path: found.save(tensor, path) for path, tensor in met.items()}
    assert names["tied"] == names["parameter"] == "base"
    assert all(name == path for path, name in names.items() if path not in ("tied", "parameter"))
    assert found.save([1], "list") is None
