# SPDX-License-Identifier: Apache-2.0
"""The log of one share, by hand: who may write next, and what a late comer is told."""

from __future__ import annotations

import pytest

from spotwatch.errors import RunTaken, StoreError
from spotwatch.train.done.log import ShareLog
from spotwatch.train.done.rows import Key, to_line
from spotwatch.train.done.shelf import Shelf, folder, shelves

from .faulty import FaultyStore
from .lease_world import nothing


def _log(store: FaultyStore, writer: str, share: int = 0) -> tuple[ShareLog, list[Key]]:
    """Return a worker's view of a share, read, and the keys in it."""
    made = ShareLog(store, share, 2, writer, patience_seconds=0.0, look=nothing)
    shelf = shelves(store.list()).get(folder(share, 2), Shelf())
    return made, list(made.load(shelf, verify=False))


def test_whoever_begins_shuts_out_whoever_was_before() -> None:
    """Whatever the one before has still to write, and however late."""
    store = FaultyStore()
    first, _ = _log(store, "first")
    first.take_over(1)
    first.append([to_line("a", 1)])
    second, keys = _log(store, "second")
    assert keys == ["a"]
    assert second.take_over(2) == []
    with pytest.raises(RunTaken, match="written by another worker"):
        first.append([to_line("b", 1)])
    second.append([to_line("b", 2)])
    assert _log(store, "third")[1] == ["a", "b"]


def test_what_came_between_reading_and_beginning_is_read() -> None:
    """A worker reads the list long before it has a share of it."""
    store = FaultyStore()
    first, _ = _log(store, "first")
    first.take_over(1)
    second, keys = _log(store, "second")
    for number in range(5):
        first.append([to_line(number, 1)])
    assert keys == []
    assert second.take_over(2) == [0, 1, 2, 3, 4]


def test_a_write_in_the_same_moment_as_a_beginning_is_read() -> None:
    """The number is taken as the worker begins: it reads on, and begins behind it."""
    store = FaultyStore()
    first, _ = _log(store, "first")
    first.take_over(1)
    second, _ = _log(store, "second")

    def before(deed: str) -> None:
        if deed == "put_if 00000002.jsonl":
            store.before = nothing
            first.append([to_line("late", 1)])

    store.before = before
    assert second.take_over(2) == ["late"]
    second.append([to_line("b", 1)])
    assert _log(store, "third")[1] == ["late", "b"]


def test_shares_do_not_meet() -> None:
    """Each has numbers of its own."""
    store = FaultyStore()
    for share in (0, 1):
        log, _ = _log(store, "me", share)
        log.take_over(1)
        log.append([to_line(share, 1)])
    assert _log(store, "me", 0)[1] == [0]
    assert _log(store, "me", 1)[1] == [1]


def test_the_same_lines_again_are_one_segment() -> None:
    """After a failure they are given again: whether they had arrived or not."""
    store = FaultyStore()
    log, _ = _log(store, "me")
    log.take_over(1)
    for deed in ("put_if 00000002", "read 00000002"):
        store.fail_at = deed
        with pytest.raises(StoreError, match="403"):
            log.append([to_line("a", 1)])
    store.fail_at = ""
    log.append([to_line("a", 1)])
    log.append([to_line("b", 1)])
    assert _log(store, "other")[1] == ["a", "b"]


def test_without_conditional_writes_both_are_kept() -> None:
    """Two that write one number do not overwrite each other, and the next start reads both."""
    store = FaultyStore(is_conditional=False)
    first, _ = _log(store, "first")
    first.take_over(1)
    second, _ = _log(store, "second")
    second.take_over(2)
    first.append([to_line("a", 1)])
    second.append([to_line("b", 1)])
    assert sorted(map(str, _log(store, "third")[1])) == ["a", "b"]
