# SPDX-License-Identifier: Apache-2.0
"""A file of a checkpoint comes back: its parts side by side, each checked as it arrives.

Nothing is restored, and no manifest is read. A part that does not verify is read once more before it is
called corrupt: a bit may have turned over on the way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from spotwatch.errors import CheckpointCorrupt, StoreMissing
from spotwatch.train.registry.fetching import Part, fetch_all
from spotwatch.train.registry.manifest import File
from spotwatch.train.registry.patience import patiently, waiting_with
from spotwatch.train.store import Store

THREADS = 8
PATIENCE_SECONDS = 60.0
Progress = Callable[[int], None]
"""Called with the bytes that have arrived so far."""


def fetch(
    store: Store,
    key: str,
    file: File,
    target: memoryview,
    between: Callable[[], None],
    *,
    threads: int = THREADS,
    patience_seconds: float = PATIENCE_SECONDS,
    progress: Progress | None = None,
) -> None:
    """Read a whole file into `target`; at return every byte of it is verified.

    Args:
        store: to read from.
        key: of the object.
        file: what the manifest says of it.
        target: as many bytes as the file has.
        between: called several times a second from this thread. What it raises ends the download within about
            two seconds; a request that hangs may write into `target` after that, so give `target` up.
        threads: how many parts are read at once.
        patience_seconds: how long a store that refuses is asked again, for each part.
        progress: hears how many bytes have arrived, from this thread.

    Raises:
        CheckpointCorrupt: it is missing, has another size, or a part does not verify, twice; key and offset
            are named.
        StoreError: the store cannot be read.
        ValueError: `target` has another size.
    """
    if len(target) != file.size_bytes:
        raise ValueError(f"{len(target)} bytes of memory for the {file.size_bytes} of {key}")
    expect_size(store, key, file, between, patience_seconds=patience_seconds)
    parts = (
        Part(key, begin, end - begin, crc, target[begin:end])
        for (begin, end), crc in zip(_spans(file), file.parts, strict=True)
    )
    fetch_all(store, list(parts), between, threads, patience_seconds, progress)


def covering_bytes(file: File, ranges: Sequence[tuple[int, int]]) -> int:
    """Return the bytes of all parts that hold some byte of `ranges`: what `fetch_parts` reads and needs."""
    return sum(end - begin for begin, end in (file.span(index) for index in _covering(file, ranges)))


def fetch_parts(  # noqa: PLR0913 - the last three have defaults and are given by name
    store: Store,
    key: str,
    file: File,
    ranges: Sequence[tuple[int, int]],
    target: memoryview,
    between: Callable[[], None],
    *,
    threads: int = THREADS,
    patience_seconds: float = PATIENCE_SECONDS,
    progress: Progress | None = None,
) -> list[memoryview]:
    """Return the verified bytes of some ranges of a file, having read no part that holds none of them.

    Args:
        store: to read from.
        key: of the object.
        file: what the manifest says of it.
        ranges: (first byte, byte after the last) each; they may overlap, in any order.
        target: `covering_bytes(file, ranges)` bytes; what is returned lies in it.
        between: as `fetch`.
        threads: as `fetch`.
        patience_seconds: as `fetch`.
        progress: as `fetch`.

    Raises:
        CheckpointCorrupt: as `fetch`; or a range leads out of the file.
        StoreError: the store cannot be read.
        ValueError: `target` has another size.
    """
    indices = _covering(file, ranges)
    if len(target) != covering_bytes(file, ranges):
        raise ValueError(f"{len(target)} bytes of memory for {covering_bytes(file, ranges)} of {key}")
    expect_size(store, key, file, between, patience_seconds=patience_seconds)
    places: list[int] = []
    parts: list[Part] = []
    at = 0
    for index in indices:
        begin, end = file.span(index)
        places.append(at)
        parts.append(Part(key, begin, end - begin, file.parts[index], target[at : at + end - begin]))
        at += end - begin
    fetch_all(store, parts, between, threads, patience_seconds, progress)
    views = []
    for begin, end in ranges:
        if begin == end:
            views.append(target[:0])
            continue
        # Parts that follow each other in the file do so in `target`, hence a range is never torn.
        first = bisect_left(indices, begin // file.part_bytes)
        start = places[first] + begin - indices[first] * file.part_bytes
        views.append(target[start : start + end - begin])
    return views


def check(
    store: Store,
    key: str,
    file: File,
    between: Callable[[], None],
    *,
    threads: int = THREADS,
    patience_seconds: float = PATIENCE_SECONDS,
    progress: Progress | None = None,
) -> None:
    """Read a whole file and keep nothing of it; it takes the memory of one part a thread.

    Raises:
        CheckpointCorrupt: as `fetch`.
        StoreError: the store cannot be read.
    """
    expect_size(store, key, file, between, patience_seconds=patience_seconds)
    parts = [
        Part(key, begin, end - begin, crc, None)
        for (begin, end), crc in zip(_spans(file), file.parts, strict=True)
    ]
    fetch_all(store, parts, between, threads, patience_seconds, progress)


def expect_size(
    store: Store, key: str, file: File, between: Callable[[], None], *, patience_seconds: float
) -> None:
    """Ask the store for the size of a file, before anything is reserved for it or fetched.

    Raises:
        CheckpointCorrupt: it is missing, or its manifest says another size.
        StoreError: the store cannot be asked.
    """
    between()
    try:
        size_bytes = patiently(lambda: store.size_bytes(key), patience_seconds, waiting_with(between))
    except StoreMissing as error:
        raise CheckpointCorrupt(f"{key} is missing") from error
    if size_bytes != file.size_bytes:
        raise CheckpointCorrupt(f"{key} has {size_bytes} bytes, its manifest says {file.size_bytes}")


def _spans(file: File) -> Iterable[tuple[int, int]]:
    return (file.span(index) for index in range(len(file.parts)))


def _covering(file: File, ranges: Sequence[tuple[int, int]]) -> list[int]:
    indices: set[int] = set()
    for begin, end in ranges:
        if not 0 <= begin <= end <= file.size_bytes:
            raise CheckpointCorrupt(f"bytes {begin} to {end} of {file.name}, which has {file.size_bytes}")
        if begin < end:
            indices.update(range(begin // file.part_bytes, -(-end // file.part_bytes)))
    return sorted(indices)
