# SPDX-License-Identifier: Apache-2.0
"""LATEST in its store: read, moved to a checkpoint, and taken over from an earlier life of the run.

Where the store enforces conditional writes, it moves by compare-and-swap; else what is read back tells who
lost, which is advisory. What lies in the directory that it names is none of its business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from spotwatch.errors import CheckpointCorrupt, RunTaken, StoreConflict, StoreError, StoreMissing
from spotwatch.train.registry.manifest import LATEST, Latest
from spotwatch.train.store import Store

_MOST_BYTES = 64 * 1024
_MOST_TRIES = 4


def read(store: Store) -> Latest | None:
    """Return the pointer, None when there is none.

    Raises:
        CheckpointCorrupt: it cannot be understood.
    """
    try:
        return Latest.from_bytes(store.get(LATEST, most_bytes=_MOST_BYTES))
    except StoreMissing:
        return None


def refuse_if_lost(store: Store, before: Latest | None, generation: int, writer: str) -> None:
    """Raise `RunTaken` when the run belongs to a later life of it, or to another process of this one."""
    if before is not None and _is_lost(before, generation, writer):
        raise RunTaken(
            f"{store.url}/{LATEST} is of generation {before.generation} by {before.writer}; ours is "
            f"{generation} by {writer}: another process has gone on with this run"
        )


def move(store: Store, pointer: Latest, lease_check: Callable[[], None]) -> None:
    """Let LATEST be `pointer`; at return that has been read back.

    Args:
        store: of the run.
        pointer: the new one.
        lease_check: raises `RunTaken`; asked just before each write.

    Raises:
        RunTaken: LATEST is another writer's, of this life of the run or a later one; it was left alone.
        StoreError: it names what it named before, or is `pointer` although that could not be read back.
    """
    for _ in range(_MOST_TRIES):
        seen = _look(store)
        if seen.latest == pointer:
            break
        refuse_if_lost(store, seen.latest, pointer.generation, pointer.writer)
        lease_check()
        try:
            _write(store, pointer, seen)
        except StoreConflict:
            continue
        break
    else:
        raise StoreError(f"{store.url}/{LATEST} was changed by others {_MOST_TRIES} times while we wrote it")
    _expect(store, pointer)


def claim(store: Store, generation: int, writer: str, lease_check: Callable[[], None]) -> Latest | None:
    """Make LATEST ours, naming what it names, so that an earlier life still alive can move it no more.

    The compare-and-swap of that life fails from here on, and so does its look before.

    Returns:
        The pointer; None without one, or with one that cannot be understood: it is left alone.

    Raises:
        RunTaken: as `move`.
        StoreError: the store refuses.
    """
    for _ in range(_MOST_TRIES):
        seen = _look(store)
        if seen.latest is None:
            return None
        pointer = replace(seen.latest, generation=generation, writer=writer)
        if seen.latest == pointer:
            return pointer
        refuse_if_lost(store, seen.latest, generation, writer)
        lease_check()
        try:
            _write(store, pointer, seen)
        except StoreConflict:
            continue
        _expect(store, pointer)
        return pointer
    raise StoreError(f"{store.url}/{LATEST} was changed by others {_MOST_TRIES} times while we claimed it")


@dataclass(frozen=True, slots=True)
class _Seen:
    latest: Latest | None
    """None: there is none, or it cannot be understood."""
    version: str | None = None
    """None: there is no object."""
    has_version: bool = True
    """False: what is there is no object that could be compared with, only replaced."""


def _look(store: Store) -> _Seen:
    try:
        body, version = store.read(LATEST, most_bytes=_MOST_BYTES)
    except StoreMissing:
        return _Seen(None)
    except CheckpointCorrupt:
        return _Seen(None, has_version=False)
    try:
        return _Seen(Latest.from_bytes(body), version)
    except CheckpointCorrupt:
        return _Seen(None, version)


def _write(store: Store, pointer: Latest, seen: _Seen) -> None:
    if seen.has_version and store.is_conditional:
        store.put_if(LATEST, pointer.to_bytes(), seen.version)
    else:
        store.put(LATEST, pointer.to_bytes())


def _expect(store: Store, pointer: Latest) -> None:
    try:
        after = read(store)
    except CheckpointCorrupt as error:
        raise StoreError(f"read back after writing: {error}") from error
    if after != pointer:
        is_lost = after is not None and _is_lost(after, pointer.generation, pointer.writer)
        kind = RunTaken if is_lost else StoreError
        raise kind(f"{store.url}/{LATEST} names {after and after.dir} after we wrote {pointer.dir}")


def _is_lost(latest: Latest, generation: int, writer: str) -> bool:
    # Two that resumed from the same checkpoint have the same generation: who writes first goes on.
    is_another = latest.generation == generation and latest.writer != writer
    return is_another or latest.generation > generation
