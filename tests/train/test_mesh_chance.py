# SPDX-License-Identifier: Apache-2.0
"""Who takes which random state on another mesh, and what ranks are told that do not agree: tables."""

from __future__ import annotations

from typing import Any

import pytest

from spotwatch.errors import ConfigError
from spotwatch.train.ranks import layout
from spotwatch.train.ranks.chance import Choice, choose


@pytest.mark.parametrize(
    ("now", "saved", "wanted"),
    [
        ("ab", "xy", [Choice(0), Choice(1)]),
        ("abcd", "x", [Choice(0), Choice(0, 1), Choice(0, 2), Choice(0, 3)]),
        ("aaaa", "x", [Choice(0)] * 4),
        ("aabb", "wxyz", [Choice(0), Choice(0), Choice(1), Choice(1)]),
        ("abcd", "xxyy", [Choice(0), Choice(2), Choice(0, 2), Choice(0, 3)]),
        ("aaaa", "wxyz", [Choice(0)] * 4),
        ("abab", "xxyy", [Choice(0), Choice(2), Choice(0), Choice(2)]),
        ("ab", "", [None, None]),
    ],
)
def test_ranks_seeded_alike_take_the_same(now: str, saved: str, wanted: list[Choice | None]) -> None:
    """Groups of equal ranks take the states that were saved in turn; what is missing is made anew."""
    here = [{"torch": ord(one)} for one in now]
    there = [{"torch": ord(one)} for one in saved] or [{}]
    assert [choose("torch", rank, here, there) for rank in range(len(now))] == wanted


def rows(*names: str, shape: tuple[int, ...] = (2,), lies: Any = None) -> list[Any]:
    """Return what a rank says of its tensors."""
    return [[name, "torch.float32", list(shape), lies] for name in names]


@pytest.mark.parametrize(
    ("found", "together", "message"),
    [
        ([{"m": rows("m/a")}, {"m": rows("m/a", "m/b")}], {"m"}, "m/b is on rank 1 only"),
        ([{"m": rows("m/a")}, {}, {"m": rows("m/b")}], {"m"}, "rank 2 tracks other models than rank 0"),
        ([{"m": rows("m/a")}, {"m": rows("m/b")}], set(), ""),
        ([{"m": rows("m/a")}, {"m": rows("m/a", shape=(3,))}], set(), r"float32 \(2,\) whole on rank 0"),
        ([{"m": rows("m/a", lies=["4", ["S(0)"]])}, {"m": rows("m/a")}], {"m"}, r"S\(0\) on a mesh of 4"),
        ([{"m": rows("m/a")}, {"other": rows("other/a")}], {"m", "other"}, ""),
    ],
)
def test_what_ranks_must_agree_on(found: list[Any], together: set[str], message: str) -> None:
    """Models by their names, shapes and places; objects of the program's own by those that have one name."""
    names = sorted({name for one in found for name in one})
    if message:
        with pytest.raises(ConfigError, match=message):
            layout.expect_agreement(found, together, names)
    else:
        layout.expect_agreement(found, together, names)


def test_who_tracks_what_follows_from_the_digests() -> None:
    """Also of an object that some ranks do not have; those that differ are found on each rank alike."""
    told = [{"a": 1, "s0": 5}, {"a": 1, "s1": 6}, {"a": 2, "s1": 6}]
    assert layout.holders(told) == {"a": [0, 1, 2], "s0": [0], "s1": [1, 2]}
    assert layout.unequal(told) == ["a"]
