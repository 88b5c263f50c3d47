# SPDX-License-Identifier: Apache-2.0
"""LEASE as bytes: what is written comes back, and what is not of that form is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwatch.errors import CheckpointCorrupt
from spotwatch.train.lease.form import MOST_GENERATION, MOST_LEASE_BYTES, Claim, generation_in
from spotwatch.train.lease.history import History, Life

from .lease_world import claim

TEXT = st.sampled_from(["", "a", "stopped", "\x1b[2J", "\ud800", "x" * 300])
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def test_there_and_back() -> None:
    """Every field survives."""
    full = claim(released="stopped", history=History((Life(1.5, "lost"), Life(7.0, "finished"))))
    assert Claim.from_bytes(full.to_bytes()) == full


def test_its_size_is_bounded() -> None:
    """The longest that we write is far below what we read."""
    full = claim(history=History((Life(1e9, "finished"),) * 20))
    assert len(full.to_bytes()) < MOST_LEASE_BYTES / 10


def test_its_own_life_is_the_last() -> None:
    """A claim that was not released ends as the reader says, one that was as it said itself."""
    before = Life(5.0, "finished")
    held = claim(lived_seconds=30.0, history=History((before,)))
    assert held.lives().lives == (before, Life(30.0, "lost"))
    assert held.lives(unsaid="stopped").lives == (before, Life(30.0, "stopped"))
    released = claim(lived_seconds=30.0, released="failed")
    assert released.lives().lives == (Life(30.0, "failed"),)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"version": None},
        {"generation": 10**12},
        {"generation": 0},
        {"generation": -1},
        {"generation": True},
        {"generation": "4"},
        {"generation": 4.0},
        {"ttl_seconds": 365 * 86400},
        {"ttl_seconds": 0},
        {"ttl_seconds": -5},
        {"ttl_seconds": float("nan")},
        {"ttl_seconds": float("inf")},
        {"ttl_seconds": "60"},
        {"pid": 0},
        {"pid": -1},
        {"pid": 10**9},
        {"beat": -1},
        {"beat": 10**30},
        {"released": "yes"},
        {"released": ["stopped"]},
        {"host": "a\x1b[2Jb"},
        {"host": "a\nb"},
        {"host": "x" * 1000},
        {"host": None},
        {"writer": "\ud800"},
        {"lived_seconds": -1},
        {"lived_seconds": 1e300},
        {"history": None},
        {"history": ["stopped"]},
        {"history": [{"seconds": 1}]},
        {"history": [{"seconds": 1, "ended": ""}]},
        {"history": [{"seconds": float("nan"), "ended": "lost"}]},
        {"history": [{"seconds": 1, "ended": "lost"}] * 21},
    ],
)
def test_out_of_bounds_is_refused(change: dict[str, Any]) -> None:
    """No value of a stranger's can stretch a wait, reach a terminal or a process that was not meant."""
    row = json.loads(claim().to_bytes())
    with pytest.raises(CheckpointCorrupt, match="LEASE"):
        Claim.from_bytes(json.dumps(row | change).encode())


@pytest.mark.parametrize("key", json.loads(claim().to_bytes()))
def test_nothing_may_be_missing(key: str) -> None:
    """A lease without one of its fields is damaged."""
    row = json.loads(claim().to_bytes())
    del row[key]
    with pytest.raises(CheckpointCorrupt):
        Claim.from_bytes(json.dumps(row).encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0" * 50,
        b"not json",
        b"\xff\xfe",
        b"[]",
        b"3",
        b"null",
        b"[" * 50_000,
        b'{"generation":' + b"9" * 5000,
    ],
)
def test_what_is_no_object_is_refused(body: bytes) -> None:
    """Garbage is damage, never another exception, and has no generation."""
    with pytest.raises(CheckpointCorrupt):
        Claim.from_bytes(body)
    assert generation_in(body) == 0


@given(st.dictionaries(st.sampled_from(sorted(json.loads(claim().to_bytes()))), JUNK))
def test_any_junk_is_a_claim_or_damage(changes: dict[str, Any]) -> None:
    """Whatever the values are, reading ends in a claim that can be written again, or in the one error."""
    body = json.dumps(json.loads(claim().to_bytes()) | changes).encode()
    try:
        read = Claim.from_bytes(body)
    except CheckpointCorrupt:
        assert 0 <= generation_in(body) <= MOST_GENERATION
    else:
        assert Claim.from_bytes(read.to_bytes()).owner == read.owner


@pytest.mark.parametrize(
    ("generation", "sane"), [(7, 7), (10**12, 0), (-1, 0), ("7", 0), (True, 0), (7.0, 0), (None, 0)]
)
def test_the_generation_of_a_later_version(generation: object, sane: int) -> None:
    """A lease of a version to come still says how far the run has counted, if that can be true."""
    assert generation_in(json.dumps({"version": 9, "generation": generation}).encode()) == sane
