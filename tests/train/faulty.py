# SPDX-License-Identifier: Apache-2.0
"""A store in memory that notes what is done to it and fails where a test wants, and a registry on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from spotwatch.errors import StoreError
from spotwatch.testing import MemoryStore
from spotwatch.train.parts import Body, Held
from spotwatch.train.registry.manifest import File, Manifest
from spotwatch.train.registry.registry import RANK_FILE, Registry
from spotwatch.train.store import Entry, OnPart, Store

BODY = bytes(range(256)) * 4
PART_BYTES = 300


class FaultyStore(MemoryStore):
    """Keeps objects in memory.

    Args:
        is_conditional: whether it says so.
    """

    def __init__(self, *, is_conditional: bool = True) -> None:
        super().__init__(is_conditional=is_conditional)
        self.deeds: list[str] = []
        """`put manifest.json`, in the order of the calls."""
        self.fail_at = ""
        """A deed that begins so is refused, each time."""
        self.before: Callable[[str], None] = lambda deed: None
        """Called before each deed."""
        self.after: Callable[[str], None] = lambda deed: None
        """Called after each deed that succeeded."""
        self._noting = threading.Lock()

    def _note(self, deed: str, key: str) -> str:
        text = f"{deed} {key.rpartition('/')[2]}"
        with self._noting:
            self.deeds.append(text)
        self.before(text)
        if self.fail_at and text.startswith(self.fail_at):
            raise StoreError(f"403 Forbidden: {text}")
        return text

    def put(self, key: str, body: bytes) -> None:
        """Note, fail, or keep."""
        deed = self._note("put", key)
        super().put(key, body)
        self.after(deed)

    def put_if(self, key: str, body: bytes, version: str | None) -> str:
        """Note, fail, or keep."""
        deed = self._note("put_if", key)
        new = super().put_if(key, body, version)
        self.after(deed)
        return new

    def read(self, key: str, *, most_bytes: int) -> tuple[bytes, str]:
        """Note, fail, or return."""
        self._note("read", key)
        return super().read(key, most_bytes=most_bytes)

    def upload(self, key: str, body: Body, on_part: OnPart) -> tuple[str, ...]:
        """Note, fail, or keep."""
        deed = self._note("upload", key)
        crcs = super().upload(key, body, on_part)
        self.after(deed)
        return crcs

    def read_into(self, key: str, begin: int, target: memoryview) -> None:
        """Note, fail, or fill."""
        self._note("read_into", key)
        super().read_into(key, begin, target)

    def size_bytes(self, key: str) -> int:
        """Note, fail, or return."""
        self._note("size", key)
        return super().size_bytes(key)

    def list(self) -> Iterator[Entry]:
        """Note, fail, or list backwards: the order of a listing is nobody's promise."""
        self._note("list", "")
        return iter(sorted(super().list(), key=lambda entry: entry.key, reverse=True))

    def delete(self, key: str) -> None:
        """Note, fail, or forget."""
        self._note("delete", key)
        super().delete(key)


def registry(store: Store, generation: int = 1) -> Registry:
    """Return a registry of a life of the run."""
    made = Registry(store, "run")
    made.generation = generation
    return made


def upload(on: Registry, directory: str, rank: int = 0, body: bytes = BODY) -> File:
    """Store a rank's file in several parts."""
    return on.upload(directory, RANK_FILE.format(rank), Held(memoryview(body), PART_BYTES), lambda sent: None)


def publish(on: Registry, step: int, *, healthy: bool = True, ranks: int = 1) -> Manifest:
    """Store a checkpoint whose files each say which rank and step they are of."""
    directory = on.new_dir(step)
    files = [upload(on, directory, rank, b"%d %d " % (rank, step) + BODY) for rank in range(ranks)]
    return on.publish(
        dir=directory,
        step=step,
        files=files,
        state={file.name: {"step": step} for file in files},
        tensors=None,
        world_size=ranks,
        healthy=healthy,
        versions={},
        now=lambda: datetime.now(UTC),
    )


def steps(of: Registry) -> list[tuple[int, int]]:
    """Return (generation, step) of each whole checkpoint, newest first."""
    return [found.order for found in of.checkpoints() if found.is_complete]


def dir_of_latest(of: Registry) -> str:
    """Return the directory that LATEST names."""
    latest = of.latest()
    assert latest is not None
    return latest.dir
