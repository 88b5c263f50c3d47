# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints go, and that what counts never does."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwatch.train.registry.listing import Found
from spotwatch.train.registry.pruning import LEAST_KEPT, Rules, condemned

_NAMES = {
    "good": ("rank-00000.safetensors", "manifest.json"),
    "half": ("rank-00000.safetensors",),
    "nan": ("rank-00000.safetensors", "unhealthy", "manifest.json"),
    "bad": ("rank-00000.safetensors", "manifest.json", "quarantine.json"),
    "bad half": ("rank-00000.safetensors", "quarantine.json"),
}


def _found(*rows: tuple[int, int, str]) -> list[Found]:
    found = [
        Found(f"step-{step:09d}-g{generation}-{number}", (generation, step), dict.fromkeys(_NAMES[kind], 1))
        for number, (generation, step, kind) in enumerate(rows)
    ]
    return sorted(found, key=lambda one: (one.order, one.dir), reverse=True)


TABLE: dict[str, tuple[list[tuple[int, int, str]], dict[str, Any], set[int]]] = {
    "the newest stay": ([(1, step, "good") for step in range(1, 7)], {"keep": 3}, {1, 2, 3}),
    "two stay at least": ([(1, step, "good") for step in range(1, 5)], {"keep": 1}, {1, 2}),
    "fewer than asked for": ([(1, 1, "good"), (1, 2, "good")], {"keep": 3}, set()),
    "rank is generation, then step": (
        [(1, 1800, "good"), (1, 1892, "good"), (2, 1300, "good"), (2, 1400, "good")],
        {"keep": 2},
        {1800, 1892},
    ),
    "named ones stay": (
        [(1, step, "good") for step in range(1, 7)],
        {"keep": 2, "named": {"step-000000001-g1-0", None}},
        {2, 3, 4},
    ),
    "bad ones take no place": (
        [(1, 1, "good"), (1, 2, "good"), (1, 3, "bad"), (1, 4, "good")],
        {"keep": 3},
        set(),
    ),
    "nor do those that were bad in this life": (
        [(1, 1, "good"), (1, 2, "good"), (1, 3, "good"), (1, 4, "good")],
        {"keep": 3, "bad": {"step-000000003-g1-2"}},
        set(),
    ),
    "a bad one goes when enough newer good ones exist": (
        [(1, 1, "bad"), (1, 2, "good"), (1, 3, "good")],
        {"keep": 2},
        {1},
    ),
    "and not before": ([(1, 1, "good"), (1, 2, "bad"), (1, 3, "good")], {"keep": 2}, set()),
    "a bad one without a manifest is a bad one": (
        [(1, 1, "bad half"), (1, 2, "good")],
        {"keep": 2, "dead_below": 2},
        set(),
    ),
    "two unhealthy ones stay, beside the good": (
        [(1, 1, "good"), (1, 2, "good"), (1, 3, "nan"), (1, 4, "nan"), (1, 5, "nan")],
        {"keep": 2},
        {3},
    ),
    "unhealthy ones take no place": (
        [(1, 1, "good"), (1, 2, "good"), (1, 3, "nan"), (1, 4, "nan")],
        {"keep": 2},
        set(),
    ),
    "what died on the way goes": (
        [(1, 9, "half"), (2, 3, "half"), (2, 5, "good")],
        {"keep": 2, "dead_below": 3},
        {9, 3},
    ),
    "what may be under way stays": (
        [(1, 9, "half"), (2, 3, "half"), (2, 5, "good")],
        {"keep": 2, "dead_below": 2},
        {9},
    ),
    "of later lives nothing goes": (
        [(1, step, "good") for step in (1, 2, 3)] + [(2, 1, "half"), (2, 2, "nan"), (3, 1, "nan")],
        {"keep": 2, "most_generation": 1, "dead_below": 2},
        {1},
    ),
    "of two attempts at one step none is guessed to be older": (
        [(1, 1, "good"), (1, 2, "good"), (1, 2, "good"), (1, 3, "good")],
        {"keep": 2},
        {1},
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_what_goes(case: str) -> None:
    """Each rule by itself."""
    rows, rules, wanted = TABLE[case]
    assert {one.order[1] for one in condemned(_found(*rows), Rules(**rules))} == wanted


_ROWS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 6), st.sampled_from(sorted(_NAMES))), max_size=14
)


@given(
    rows=_ROWS,
    keep=st.integers(1, 4),
    named=st.sets(st.integers(0, 13), max_size=3),
    most_generation=st.one_of(st.just(math.inf), st.integers(1, 3)),
    dead_below=st.integers(0, 4),
)
def test_what_counts_never_goes(
    rows: list[tuple[int, int, str]], keep: int, named: set[int], most_generation: float, dead_below: int
) -> None:
    """Whatever lies there: what is named stays, enough good ones stay, and nothing newer than they goes."""
    found = _found(*rows)
    names = {found[index].dir for index in named if index < len(found)}
    rules = Rules(keep=keep, named=names, most_generation=most_generation, dead_below=dead_below)
    gone = {one.dir for one in condemned(found, rules)}
    good = [one for one in found if one.is_complete and one.is_healthy and not one.is_quarantined]
    left = [one for one in good if one.dir not in gone]
    assert not gone & names
    assert left[: max(keep, LEAST_KEPT)] == good[: max(keep, LEAST_KEPT)]
    assert all(one.order[0] <= most_generation for one in found if one.dir in gone)
    assert condemned([one for one in found if one.dir not in gone], rules) == []
