# SPDX-License-Identifier: Apache-2.0
"""The append-only record of what happened: one JSON object a line, each file opening with a snapshot.

Writing happens in a thread of its own and is never in the way of an order: who needs a row on disk waits at
most a moment and goes on. It does not know what the rows mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from spotwatch.handshake import MAX_HEARD_SEQ, MAX_SEQ
from spotwatch.model import Event

FILE = "journal.jsonl"
PREVIOUS = "journal.1.jsonl"
ROTATE_BYTES = 1024 * 1024
QUEUED_ROWS = 10_000
"""Rows kept in memory while the disk hangs; more are dropped and counted."""


class Journal(Protocol):
    """Where rows go."""

    def append(self, event: Event) -> None:
        """Take a row; returns at once, never raises."""

    async def flushed(self, seconds: float) -> bool:
        """Wait at most `seconds` until every row taken so far is on disk; tell whether it is."""

    def close(self) -> None:
        """Write what is left, within a second."""


class MemoryJournal:
    """A journal where no place is writable, and for dry runs and tests: rows are only held in memory.

    Args:
        keep: how many of the last rows to hold.
    """

    def __init__(self, keep: int = 1000) -> None:
        self._keep = keep
        self.events: list[Event] = []

    def append(self, event: Event) -> None:
        """Hold the row."""
        self.events.append(event)
        del self.events[: -self._keep]

    async def flushed(self, seconds: float) -> bool:
        """Say yes: there is nothing to wait for."""
        del seconds
        return True

    def close(self) -> None:
        """Do nothing."""


class FileJournal:
    """A journal in `state_dir`, fsynced row by row.

    Args:
        state_dir: an existing directory of ours.
        snapshot: gives the first row of each new file. Called in the caller's thread, by `append`.
        on_error: called (from the writer's thread) for each row that could not be written.
    """

    def __init__(
        self, state_dir: Path, *, snapshot: Callable[[], Event], on_error: Callable[[str], None]
    ) -> None:
        self._path = state_dir / FILE
        self._previous = state_dir / PREVIOUS
        self._snapshot = snapshot
        self._on_error = on_error
        self._rows: queue.Queue[_Row | None] = queue.Queue(maxsize=QUEUED_ROWS)
        self._taken_bytes = 0
        self._has_lost_rows = False
        """Set by either thread; with the next row a new file begins, whose snapshot makes up for the loss."""
        self._thread = threading.Thread(target=self._write_all, name="journal", daemon=True)
        self._put(_Row(_line(snapshot()), begins_file=True))
        self._thread.start()

    def append(self, event: Event) -> None:
        """Take a row; it is on disk soon, or counted as an error."""
        line = _line(event)
        self._put(_Row(line))
        self._taken_bytes += len(line)
        if self._taken_bytes > ROTATE_BYTES or self._has_lost_rows:
            # The event has been applied already: the snapshot contains it, its row ends the old file.
            self._taken_bytes = 0
            self._has_lost_rows = False
            self._put(_Row(_line(self._snapshot()), begins_file=True))

    async def flushed(self, seconds: float) -> bool:
        """Wait at most `seconds` until every row taken so far is on disk; tell whether it is."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool] = loop.create_future()

        def tell(is_written: bool) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(_settle, done, is_written)

        if not self._put(_Row(b"", on_written=tell)):
            return False
        try:
            async with asyncio.timeout(seconds):
                return await done
        except TimeoutError:
            self._on_error(f"journal not written within {seconds:g} s; going on without")
            return False

    def close(self) -> None:
        """Write what is left, within a second."""
        with contextlib.suppress(queue.Full):
            self._rows.put_nowait(None)
        self._thread.join(timeout=1.0)

    def _put(self, row: _Row) -> bool:
        try:
            self._rows.put_nowait(row)
        except queue.Full:
            self._has_lost_rows = True
            self._on_error("journal queue is full; a row was dropped")
            return False
        return True

    def _write_all(self) -> None:
        fd = -1
        is_written = True
        while (row := self._rows.get()) is not None:
            try:
                if row.begins_file or fd < 0:
                    if fd >= 0:
                        os.close(fd)
                        fd = -1
                    fd = self._begin(row.line) if row.begins_file else self._reopen()
                if row.line and not row.begins_file:
                    # After a failed write a torn line may lie there; a blank keeps it from eating this one.
                    _write_whole(fd, row.line if is_written else b"\n" + row.line)
                if row.line:
                    is_written = True
            except OSError as error:
                is_written = False
                self._has_lost_rows = True
                self._on_error(f"journal {self._path.name}: {error.strerror}")
            if row.on_written is not None:
                row.on_written(is_written)
        if fd >= 0:
            os.close(fd)

    def _begin(self, line: bytes) -> int:
        """Write a new file that opens with `line`, and put it in the place of the present one."""
        fresh = self._path.with_suffix(".new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
        try:
            _write_whole(fd, line)
            if self._path.exists():
                # A copy under the second name first: at no moment is there no journal.
                with contextlib.suppress(FileNotFoundError):
                    self._previous.unlink()
                with contextlib.suppress(OSError):  # a file system without hard links keeps no second file
                    os.link(self._path, self._previous)
            fresh.rename(self._path)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _reopen(self) -> int:
        return os.open(
            self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640
        )


class _Row:
    """One line on its way to the disk, or (without a line) a question whether all before it arrived."""

    __slots__ = ("begins_file", "line", "on_written")

    def __init__(
        self,
        line: bytes,
        *,
        begins_file: bool = False,
        on_written: Callable[[bool], None] | None = None,
    ) -> None:
        self.line = line
        self.begins_file = begins_file
        self.on_written = on_written


def read_journal(state_dir: Path) -> tuple[list[Event], int]:
    """Return the rows of the last life, from its newest snapshot on, and how many lines were unreadable.

    A torn last line, as a crash leaves it, counts as unreadable. No journal at all gives no rows. Orders that
    an earlier version gave numbers that no reader keeps apart get others, in the same sequence.
    """
    bad = 0
    for name in (FILE, PREVIOUS):
        try:
            lines = (state_dir / name).read_bytes().splitlines()
        except OSError:
            continue
        events: list[Event] = []
        for line in lines:
            try:
                event = Event.from_json(json.loads(line, object_hook=_with_seqs_that_count))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                bad += bool(line)
                continue
            if event.name == "snapshot":
                events = []
            events.append(event)
        if events and events[0].name == "snapshot":
            return events, bad
    return [], bad


def _with_seqs_that_count(row: dict[str, Any]) -> dict[str, Any]:
    """Return `row` with numbers of orders that trainers can tell apart, and that leave room for others."""
    for key in ("seq", "last_seq", "highest_seq"):
        seq = row.get(key)
        if isinstance(seq, int) and seq > MAX_SEQ:
            row[key] = MAX_HEARD_SEQ + seq % MAX_HEARD_SEQ
    return row


def _settle(done: asyncio.Future[bool], is_written: bool) -> None:
    if not done.done():
        done.set_result(is_written)


def _line(event: Event) -> bytes:
    return json.dumps(event.to_json(), separators=(",", ":")).encode() + b"\n"


def _write_whole(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.fsync(fd)
