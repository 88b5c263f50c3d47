# SPDX-License-Identifier: Apache-2.0
"""A file in parts, a store between which and us things happen, and how it is fetched."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from spotwatch.testing import MemoryStore
from spotwatch.train.parts import Held
from spotwatch.train.registry import download
from spotwatch.train.registry.manifest import File

KEY = "step-000000001-g1-a/rank-00000.safetensors"


BODY = bytes(range(256)) * 40


PART_BYTES = 1000


def nothing() -> None:
    """Do nothing, in between."""


def file_of(body: bytes = BODY, part_bytes: int = PART_BYTES, store: MemoryStore | None = None) -> File:
    """Store a body in parts, and return what a manifest says of it."""
    store = MemoryStore() if store is None else store
    parts = store.upload(KEY, Held(memoryview(body), part_bytes), lambda sent: None)
    return File.of("rank-00000.safetensors", len(body), part_bytes, parts)


class Wire(MemoryStore):
    """A store between which and us things happen.

    Args:
        happen: called with how often this part was asked for before, its first byte, and the bytes that came.
    """

    def __init__(self, happen: Callable[[int, int, memoryview], object]) -> None:
        super().__init__()
        self.happen = happen
        self.asked: list[int] = []
        self._asking = threading.Lock()

    def read_into(self, key: str, begin: int, target: memoryview) -> None:
        """Fill, and let it happen."""
        with self._asking:
            before = self.asked.count(begin)
            self.asked.append(begin)
        super().read_into(key, begin, target)
        self.happen(before, begin, target)


def fetch(store: MemoryStore, file: File, **options: Any) -> bytearray:
    """Return the whole file as it comes back."""
    buffer = bytearray(file.size_bytes)
    between = options.pop("between", nothing)
    download.fetch(store, KEY, file, memoryview(buffer), between, **{"patience_seconds": 0.0, **options})
    return buffer
