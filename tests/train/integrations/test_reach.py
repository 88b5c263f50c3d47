# SPDX-License-Identifier: Apache-2.0
"""Random generators and counted numbers are found wherever programs have them, and go on in another life."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from spotwatch.train.integrations import named
from spotwatch.train.integrations.held import Holdings
from spotwatch.train.integrations.reach import reach

np = pytest.importorskip("numpy", reason="comes with every trainer")
pytest.importorskip("torch")

_WAYS = (
    *("in_comprehension", "in_lambda", "by_helper", "by_imported", "by_module", "imported_within"),
    *("from_collection", "by_object_made_within", "by_object_of_module", "decorated", "below_a_cache"),
    *("has_attribute", "ByMethod", "ByClass", "Below", "ByProperty", "Late", "Counts", "Changes"),
    "InThread",
)


@contextmanager
def _life() -> Iterator[ModuleType]:
    """Give the program as a process finds it at its start."""
    names = [f"tests.train.integrations.workers.drawing_{name}" for name in ("other", "ways")]
    try:
        yield [importlib.import_module(name) for name in names][-1]
    finally:
        for name in names:
            sys.modules.pop(name, None)


def _loader(program: ModuleType, way: str) -> Any:
    return SimpleNamespace(collate_fn=program.WAYS[way](), num_workers=0)


def test_all_ways_are_tried() -> None:
    """None that the program has is left out."""
    with _life() as program:
        assert set(program.WAYS) == set(_WAYS)


@pytest.mark.parametrize("way", _WAYS)
def test_what_a_program_draws_goes_on_in_another_life(way: str) -> None:
    """A new process draws what the first one would have drawn next."""
    with _life() as program:
        loader = _loader(program, way)
        holdings = Holdings(loader, evaluated=None)
        loader.collate_fn([1, 2])
        held = holdings.read()
        expected = loader.collate_fn([3, 4])
    with _life() as program:
        loader = _loader(program, way)
        Holdings(loader, evaluated=None).put(held)
        assert loader.collate_fn([3, 4]) == expected


@pytest.mark.parametrize("way", _WAYS)
def test_the_next_batches_are_of_other_chance(way: str) -> None:
    """A life that is given nothing draws something else: so what goes on was put back."""
    with _life() as program:
        collate = _loader(program, way).collate_fn
        collate([1, 2])
        expected = collate([3, 4])
    with _life() as program:
        assert _loader(program, way).collate_fn([3, 4]) != expected


def test_many_small_objects_hide_no_function() -> None:
    """Of data in small pieces not all is looked at, and of functions all are."""
    pieces = [[[[piece, row] for piece in range(8)] for _ in range(8)] for row in range(60)]
    with _life() as program:
        roots = {"dataset": pieces, "collate_fn": program.by_helper}
        assert set(reach(roots).generators) == {"collate_fn._twice._once.RNG"}


def test_what_functions_of_libraries_name_is_not_followed() -> None:
    """Python's own generators, as that of temporary names, are no data's."""

    def collate() -> Any:
        return sys.modules["tempfile"].mkdtemp(), np.random.default_rng, pytest.raises

    assert not reach({"collate_fn": collate}).generators


@pytest.mark.parametrize(
    ("module", "beside", "is_one"),
    [
        ("json.decoder", "json", False),
        ("torch.utils.data", "torch", False),
        ("pytest", "drawing_ways", False),
        ("pytest", "pytest", True),
        ("tests.train", "drawing_ways", True),
        (None, "pytest", True),
    ],
)
def test_which_modules_are_the_programs(module: str | None, beside: str, is_one: bool) -> None:
    """Installed packages are followed from themselves only, known libraries never."""
    assert named.is_programs(module, beside) is is_one


class _Settings(dict[str, Any]):
    """A dict whose items are attributes too, as configurations often are."""

    __getattr__ = dict.__getitem__


class _Unopened:
    """Opens when it is asked for anything, which fails here."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class _Bare(_Unopened):
    __slots__ = ()


class _Unbound(_Unopened):
    """Stands for another object, also when it is asked for its class."""

    @property  # type: ignore[misc]  # as proxies have it
    def __class__(self) -> Any:
        raise RuntimeError("unbound")


class _Loads(dict[str, Any]):
    """Loads what it holds when it is asked for it."""

    def items(self) -> Any:
        raise RuntimeError("loads everything")


class _Rows:
    """A dataset with a generator beside such an object."""

    def __init__(self, beside: Any) -> None:
        self.beside = beside
        self.generator = np.random.default_rng(0)

    def __getitem__(self, place: int) -> Any:
        return self.generator.random(), self.beside, place


@pytest.mark.parametrize("kind", [_Settings, _Unopened, _Bare, _Unbound, _Loads])
def test_what_may_do_anything_when_it_is_asked_is_not_asked(kind: type) -> None:
    """Held by a dataset, or named by a function: it is passed over, and what is beside it is found."""
    one = kind()
    rows = _Rows(one)

    def collate(samples: Any) -> Any:
        return samples, one

    loader = SimpleNamespace(dataset=rows, collate_fn=collate, num_workers=0)
    held = Holdings(loader, evaluated=None).read()
    assert list(held["generators"]) == ["dataset.generator"]
