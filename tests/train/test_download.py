# SPDX-License-Identifier: Apache-2.0
"""Files come back in parts, side by side, each checked; what does not verify is read again, then refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwatch.errors import CheckpointCorrupt, StoreError, StoreMissing
from spotwatch.testing import MemoryStore
from spotwatch.train.parts import Held
from spotwatch.train.registry import download, fetching
from spotwatch.train.registry.manifest import File
from spotwatch.train.stores.directory import DirectoryStore

from .download_world import BODY, KEY, PART_BYTES, Wire, fetch, file_of, nothing


@given(body=st.binary(max_size=400), part_bytes=st.integers(1, 120), threads=st.integers(1, 5))
def test_what_was_stored_comes_back(body: bytes, part_bytes: int, threads: int) -> None:
    """Bytes of any number in parts of any size, by any number of threads."""
    store = MemoryStore()
    file = file_of(body, part_bytes, store)
    assert fetch(store, file, threads=threads) == body


def test_a_directory_and_odd_sizes(tmp_path: Path) -> None:
    """A real file, whose last part is short."""
    store = DirectoryStore(tmp_path)
    parts = store.upload(KEY, Held(memoryview(BODY), 999), lambda sent: None)
    file = File.of("rank-00000.safetensors", len(BODY), 999, parts)
    buffer = bytearray(len(BODY))
    download.fetch(store, KEY, file, memoryview(buffer), nothing)
    assert buffer == BODY


def test_parts_are_read_side_by_side() -> None:
    """Four threads have four requests under way at once; one by one would never get past the first."""
    together = threading.Barrier(4)
    store = Wire(lambda before, begin, target: together.wait(10))
    file = file_of(BODY[:4000], 1000, store)
    assert fetch(store, file, threads=4) == BODY[:4000]


def test_progress_is_told_in_this_thread_and_ends_with_all() -> None:
    """The bytes so far only grow, and are those of verified parts."""
    seen: list[tuple[int, int]] = []
    store = MemoryStore()
    file = file_of(store=store)
    fetch(store, file, progress=lambda sent: seen.append((sent, threading.get_ident())))
    sizes = [sent for sent, _ in seen]
    assert sizes == sorted(sizes)
    assert (len(sizes), sizes[-1]) == (len(file.parts), len(BODY))
    assert {ident for _, ident in seen} == {threading.get_ident()}


def test_a_bit_lost_on_the_way_costs_one_more_request() -> None:
    """The part is read again, and no other."""

    def flip(before: int, begin: int, target: memoryview) -> None:
        if begin == 3000 and not before:
            target[7] ^= 1

    store = Wire(flip)
    assert fetch(store, file_of(store=store)) == BODY
    assert sorted(store.asked) == sorted([*range(0, len(BODY), PART_BYTES), 3000])


def test_a_bit_lost_in_the_store_is_named_by_key_and_place() -> None:
    """Read twice and still wrong, it is the object that is damaged; what it should have been is said."""
    store = MemoryStore()
    file = file_of(store=store)
    store.objects[KEY] = BODY[:4500] + bytes([BODY[4500] ^ 1]) + BODY[4501:]
    with pytest.raises(CheckpointCorrupt, match=rf"{KEY}: the 1000 bytes from 4000 on .* {file.parts[4]}"):
        fetch(store, file)


@given(bit=st.integers(0, 8 * 300 - 1))
def test_any_flipped_bit_is_found(bit: int) -> None:
    """Whichever it is."""
    store = MemoryStore()
    file = file_of(BODY[:300], 100, store)
    body = bytearray(BODY[:300])
    body[bit // 8] ^= 1 << bit % 8
    store.objects[KEY] = bytes(body)
    with pytest.raises(CheckpointCorrupt, match=f"from {bit // 800 * 100} on"):
        fetch(store, file)


@pytest.mark.parametrize("change", [lambda body: body[:-1], lambda body: body + b"x", lambda body: b""])
def test_another_size_is_refused_before_anything_is_read(change: Callable[[bytes], bytes]) -> None:
    """Truncated, grown or empty: one question is enough."""
    store = Wire(lambda before, begin, target: None)
    file = file_of(store=store)
    store.objects[KEY] = change(BODY)
    with pytest.raises(CheckpointCorrupt, match=f"{KEY} has .* bytes, its manifest says {len(BODY)}"):
        fetch(store, file)
    assert store.asked == []


def test_a_missing_file_is_corrupt_and_no_trouble_with_the_store() -> None:
    """Gone before the first question, or after it: the checkpoint is incomplete, another may not be."""
    store = MemoryStore()
    file = file_of(store=store)
    store.delete(KEY)
    with pytest.raises(CheckpointCorrupt, match="is missing"):
        fetch(store, file)

    def gone(before: int, begin: int, target: memoryview) -> None:
        raise StoreMissing(KEY)

    wire = Wire(gone)
    with pytest.raises(CheckpointCorrupt, match="is missing"):
        fetch(wire, file_of(store=wire))


def test_trouble_with_one_part_is_asked_again() -> None:
    """A request that failed costs a pause of this part, while the others go on."""

    def refuse(before: int, begin: int, target: memoryview) -> None:
        if begin == 2000 and not before:
            target[:] = bytes(len(target))
            raise StoreError("503 SlowDown")

    store = Wire(refuse)
    assert fetch(store, file_of(store=store), patience_seconds=60.0, threads=2) == BODY
    assert store.asked.count(2000) == 2
    assert len(store.asked) == 12


def test_trouble_that_stays_is_told_once_patience_is_over() -> None:
    """Of which part, how often asked, and never called corrupt."""

    def refuse(before: int, begin: int, target: memoryview) -> None:
        raise StoreError("403 Forbidden")

    store = Wire(refuse)
    with pytest.raises(StoreError, match=r"403 Forbidden \(tried once in 0 s\)") as caught:
        fetch(store, file_of(store=store))
    assert not isinstance(caught.value, CheckpointCorrupt)


class _LeaveError(Exception):
    """A stop was ordered."""


def test_a_stop_ends_it_while_requests_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request has to end for it: a reclaim does not wait for a slow network."""
    monkeypatch.setattr(fetching, "_JOIN_SECONDS", 0.05)
    release = threading.Event()
    store = Wire(lambda before, begin, target: release.wait(60))
    file = file_of(store=store)

    def between() -> None:
        if len(store.asked) == 3:
            raise _LeaveError

    with pytest.raises(_LeaveError):
        fetch(store, file, between=between, threads=3)
    assert not release.is_set()
    release.set()
    _wait_until(_no_threads)
    assert len(store.asked) == 3


def test_a_stop_ends_the_asking_again() -> None:
    """A pause between two tries is no place to miss a stop in."""

    def refuse(before: int, begin: int, target: memoryview) -> None:
        raise StoreError("503 SlowDown")

    store = Wire(refuse)
    file = file_of(store=store)

    def between() -> None:
        if len(store.asked) == 2:
            raise _LeaveError

    with pytest.raises(_LeaveError):
        fetch(store, file, between=between, threads=2, patience_seconds=3600.0)
    _wait_until(_no_threads)
    assert len(store.asked) == 2


def test_the_first_failure_stops_the_rest() -> None:
    """A thousand parts are not fetched for a file that is known to be damaged."""
    store = Wire(lambda before, begin, target: None)
    file = file_of(BODY, 10, store)
    store.objects[KEY] = b"\xff" + BODY[1:]
    with pytest.raises(CheckpointCorrupt):
        fetch(store, file, threads=1)
    assert store.asked == [0, 0]
    _wait_until(_no_threads)


def test_between_is_called_though_nothing_arrives() -> None:
    """The caller refreshes its lease and looks for orders meanwhile."""
    called = threading.Event()
    store = Wire(lambda before, begin, target: called.wait(60))
    calls: list[float] = []

    def between() -> None:
        calls.append(time.monotonic())
        if len(calls) > 5:
            called.set()

    assert fetch(store, file_of(store=store), between=between, threads=2) == BODY


def test_memory_of_another_size_is_the_callers_mistake() -> None:
    """Too little would be overrun, too much would be left as it was."""
    store = MemoryStore()
    file = file_of(store=store)
    for size in (len(BODY) - 1, len(BODY) + 1):
        with pytest.raises(ValueError, match="bytes of memory"):
            download.fetch(store, KEY, file, memoryview(bytearray(size)), nothing)
        with pytest.raises(ValueError, match="bytes of memory"):
            download.fetch_parts(store, KEY, file, [(0, len(BODY))], memoryview(bytearray(size)), nothing)


@given(
    size=st.integers(0, 200),
    part_bytes=st.integers(1, 60),
    ends=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), max_size=6),
)
def test_ranges_are_what_a_slice_is(size: int, part_bytes: int, ends: list[tuple[int, int]]) -> None:
    """Any ranges, overlapping, empty, in any order; and no part is read that holds none of them."""
    ranges = [(min(pair), max(pair)) for pair in ends if max(pair) <= size]
    store = Wire(lambda before, begin, target: None)
    body = BODY[:size]
    file = file_of(body, part_bytes, store)
    target = memoryview(bytearray(download.covering_bytes(file, ranges)))
    views = download.fetch_parts(store, KEY, file, ranges, target, nothing)
    assert [bytes(view) for view in views] == [body[begin:end] for begin, end in ranges]
    wanted = {at // part_bytes for begin, end in ranges for at in range(begin, end)}
    assert {begin // part_bytes for begin in store.asked} == wanted


def test_a_range_lies_where_it_was_read() -> None:
    """Nothing is copied: what is returned is a view of the memory that was given."""
    store = MemoryStore()
    file = file_of(store=store)
    buffer = bytearray(download.covering_bytes(file, [(1500, 3500)]))
    (view,) = download.fetch_parts(store, KEY, file, [(1500, 3500)], memoryview(buffer), nothing)
    view[0] ^= 255
    assert buffer[500] == BODY[1500] ^ 255


@pytest.mark.parametrize("wrong", [(-1, 5), (5, 4), (0, len(BODY) + 1), (10**18, 10**18)])
def test_a_range_outside_of_the_file_is_refused(wrong: tuple[int, int]) -> None:
    """Ranges come from a manifest; a hostile one leads nowhere."""
    store = MemoryStore()
    file = file_of(store=store)
    with pytest.raises(CheckpointCorrupt, match="which has"):
        download.covering_bytes(file, [wrong])


def test_a_damaged_part_is_found_by_who_needs_it_only() -> None:
    """A rank that needs none of it goes on; the whole checkpoint is judged by all ranks together."""
    store = MemoryStore()
    file = file_of(store=store)
    store.objects[KEY] = BODY[:4500] + bytes([BODY[4500] ^ 1]) + BODY[4501:]
    target = memoryview(bytearray(PART_BYTES))
    (view,) = download.fetch_parts(store, KEY, file, [(3000, 4000)], target, nothing)
    assert view == BODY[3000:4000]
    with pytest.raises(CheckpointCorrupt, match="from 4000 on"):
        download.fetch_parts(store, KEY, file, [(4999, 5000)], target, nothing)


def test_checking_takes_the_memory_of_one_part_a_thread() -> None:
    """However many parts there are, so many buffers are met."""
    met: set[int] = set()

    def meet(before: int, begin: int, target: memoryview) -> None:
        assert len(target) <= 100
        met.add(id(target.obj))

    store = Wire(meet)
    file = file_of(BODY, 100, store)
    seen: list[int] = []
    download.check(store, KEY, file, nothing, threads=3, progress=seen.append)
    assert len(met) <= 3
    assert seen[-1] == len(BODY)


def test_checking_finds_what_fetching_finds() -> None:
    """A bit and a size."""
    store = MemoryStore()
    file = file_of(store=store)
    store.objects[KEY] = BODY[:-1] + b"!"
    with pytest.raises(CheckpointCorrupt, match="bytes from 10000 on"):
        download.check(store, KEY, file, nothing)
    store.objects[KEY] = BODY[:-1]
    with pytest.raises(CheckpointCorrupt, match="its manifest says"):
        download.check(store, KEY, file, nothing)


def _no_threads() -> bool:
    return not [one for one in threading.enumerate() if one.name.startswith("spotwatch-fetch")]


def _wait_until(wanted: Callable[[], bool], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < until
        time.sleep(0.01)
