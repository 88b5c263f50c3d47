# SPDX-License-Identifier: Apache-2.0
"""Parts of objects read by several threads at once: checked, read once more, asked for again, stopped.

Which parts make a file is in `download`.
"""

from __future__ import annotations

import queue
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from spotwatch.errors import CheckpointCorrupt, StoreMissing
from spotwatch.train.attendance import Left, Request
from spotwatch.train.registry.patience import patiently
from spotwatch.train.store import Store

_TICK_SECONDS = 0.05
# What a request needs to end once nobody wants it; the thread of a slower one is left behind.
_JOIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Part:
    """One range of one object, and what it must be."""

    key: str
    begin: int
    size_bytes: int
    crc32: str
    target: memoryview | None
    """Where its bytes are wanted; None: they are only to be checked."""


class _StoppedError(Exception):
    """Nobody wants the rest."""


def fetch_all(
    store: Store,
    parts: Sequence[Part],
    between: Callable[[], None],
    threads: int,
    patience_seconds: float,
    progress: Callable[[int], None] | None,
) -> None:
    """Read all parts; at return each one is verified. The first failure stops the rest.

    Raises:
        CheckpointCorrupt: a part does not verify, twice in a row; or its object is gone.
        StoreError: the store refuses for longer than `patience_seconds`, or sends nothing for as long.
    """
    crew = _Crew(store, parts, patience_seconds)
    workers: list[threading.Thread] = []
    arrived = 0
    try:
        for number in range(min(threads, len(parts))):
            worker = threading.Thread(target=crew.work, name=f"spotwatch-fetch-{number}", daemon=True)
            worker.start()
            workers.append(worker)
        for _ in parts:
            while (answer := crew.answer()) is None:
                between()
                crew.request.expect_sign()
            if isinstance(answer, Exception):
                raise answer
            arrived += answer
            between()
            if progress is not None:
                progress(arrived)
    finally:
        crew.request.is_left = True
        crew.stop.set()
        until = time.monotonic() + _JOIN_SECONDS
        for worker in workers:
            worker.join(max(0.0, until - time.monotonic()))


class _Crew:
    """What the threads of one download share."""

    def __init__(self, store: Store, parts: Sequence[Part], patience_seconds: float) -> None:
        self.stop = threading.Event()
        what = f"read {store.url}/{parts[0].key}" if parts else ""
        self.request = Request(what, patience_seconds)
        """All of them together: it is silent when not one moves."""
        self._store = store
        self._patience_seconds = patience_seconds
        self._left: Iterator[Part] = iter(parts)
        self._lock = threading.Lock()
        self._answers: queue.SimpleQueue[int | Exception] = queue.SimpleQueue()

    def answer(self) -> int | Exception | None:
        """Return the bytes of a part that has arrived, or a failure; None after a short while without one."""
        try:
            return self._answers.get(timeout=_TICK_SECONDS)
        except queue.Empty:
            return None

    def work(self) -> None:
        """Read part after part, until there is none or nobody wants it."""
        self.request.attend()
        scratch = bytearray()
        while not self.stop.is_set():
            with self._lock:
                part = next(self._left, None)
            if part is None:
                return
            target = part.target
            if target is None:
                if len(scratch) < part.size_bytes:
                    scratch = bytearray(part.size_bytes)
                target = memoryview(scratch)[: part.size_bytes]
            try:
                self._read(part, target)
            except (_StoppedError, Left):
                return
            except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
                self._answers.put(error)
                return
            self._answers.put(part.size_bytes)

    def _read(self, part: Part, target: memoryview) -> None:
        first = self._read_once(part, target)
        if first == part.crc32:
            return
        second = self._read_once(part, target)
        if second != part.crc32:
            raise CheckpointCorrupt(
                f"{part.key}: the {part.size_bytes} bytes from {part.begin} on have the checksum {first}, "
                f"and {second} when read again; the manifest says {part.crc32}"
            )

    def _read_once(self, part: Part, target: memoryview) -> str:
        try:
            patiently(lambda: self._ask(part, target), self._patience_seconds, self._pause)
        except StoreMissing as error:
            raise CheckpointCorrupt(f"{part.key} is missing") from error
        return f"{zlib.crc32(target):08x}"

    def _ask(self, part: Part, target: memoryview) -> None:
        try:
            self._store.read_into(part.key, part.begin, target)
        finally:
            self.request.moved()  # a refusal is no silence, and has a patience of its own

    def _pause(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise _StoppedError
