# SPDX-License-Identifier: Apache-2.0
"""A store whose requests can be left: each runs in a thread of its own while the caller looks at its orders.

Only where the caller wants that, and for its thread alone: a start waits for its store, and must neither wait
for ever nor be deaf meanwhile. Large bodies come and go by threads as it is, and pass through.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Generic, TypeVar, cast

from spotwatch.errors import StoreError, StoreSilent
from spotwatch.train import attendance
from spotwatch.train.attendance import Request
from spotwatch.train.parts import Body
from spotwatch.train.registry.patience import ANSWERS
from spotwatch.train.store import Entry, OnPart, Store

T = TypeVar("T")

_TICK_SECONDS = 0.05
# For what is still to be asked or given back by a process that was told to leave.
LEAVING_SECONDS = 8.0


class AttendedStore:
    """Passes everything to `store`.

    Args:
        store: that may hang.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._watch: _Watch | None = None

    @contextmanager
    def attending(self, between: Callable[[], None], patience_seconds: float) -> Iterator[Callable[[], None]]:
        """Let requests of this thread be left when told to, or after a long silence, as long as this lasts.

        It gives what to call instead of `between`. Once that has raised, there are `LEAVING_SECONDS` for all
        further requests together.

        Args:
            between: called several times a second; raises when the caller is told to leave.
            patience_seconds: a store silent for so long raises `StoreSilent`.
        """
        watch = _Watch(between, patience_seconds)
        yield from self._watched(watch, watch.look)

    @contextmanager
    def hurrying(self) -> Iterator[None]:
        """Give requests of this thread `LEAVING_SECONDS` together: the caller was told to leave."""
        watch = _Watch(lambda: None, 0.0)
        watch.hurry()
        yield from self._watched(watch, None)

    def _watched(self, watch: _Watch, given: T) -> Iterator[T]:
        self._watch = watch
        try:
            yield given
        finally:
            self._watch = None

    @property
    def url(self) -> str:
        """Return the root."""
        return self.store.url

    @property
    def is_conditional(self) -> bool:
        """Tell whether the store enforces `put_if`."""
        return self._ask("learn what conditional writes are worth in", "", lambda: self.store.is_conditional)

    def put(self, key: str, body: bytes) -> None:
        """Store a small object."""
        self._ask("write", key, lambda: self.store.put(key, body))

    def put_if(self, key: str, body: bytes, version: str | None) -> str:
        """Store a small object if it is still that version."""
        return self._ask("write", key, lambda: self.store.put_if(key, body, version))

    def get(self, key: str, *, most_bytes: int) -> bytes:
        """Return an object."""
        return self._ask("read", key, lambda: self.store.get(key, most_bytes=most_bytes))

    def read(self, key: str, *, most_bytes: int) -> tuple[bytes, str]:
        """Return an object and its version."""
        return self._ask("read", key, lambda: self.store.read(key, most_bytes=most_bytes))

    def prepare(self, size_bytes: int) -> None:
        """Start what an upload of that size will need."""
        self.store.prepare(size_bytes)

    def upload(self, key: str, body: Body, on_part: OnPart) -> tuple[str, ...]:
        """Store a large object."""
        return self.store.upload(key, body, on_part)

    def read_into(self, key: str, begin: int, target: memoryview) -> None:
        """Fill `target`."""
        self.store.read_into(key, begin, target)

    def size_bytes(self, key: str) -> int:
        """Return the size of an object."""
        return self._ask("read the size of", key, lambda: self.store.size_bytes(key))

    def list(self) -> Iterator[Entry]:
        """Yield every object below the root."""
        if self._mine is None:
            return self.store.list()

        def whole() -> list[Entry]:
            entries = []
            for entry in self.store.list():
                attendance.moved()
                entries.append(entry)
            return entries

        return iter(self._ask("list", "", whole))

    def delete(self, key: str) -> None:
        """Remove an object."""
        self._ask("delete", key, lambda: self.store.delete(key))

    def abort_uploads(self) -> int:
        """Remove the parts of uploads that were never finished."""
        return self._ask("find broken uploads in", "", self.store.abort_uploads)

    def close(self) -> None:
        """End processes and connections."""
        self.store.close()

    @property
    def _mine(self) -> _Watch | None:
        # Threads that renew, save or fetch have their own ways of not waiting for ever.
        watch = self._watch
        return watch if watch is not None and watch.thread is threading.current_thread() else None

    def _ask(self, deed: str, key: str, call: Callable[[], T]) -> T:
        watch = self._mine
        return call() if watch is None else watch.wait_for(f"{deed} {self.url}/{key}".rstrip("/"), call)


class _Watch:
    """What one thread, while it is attended, knows of itself and of its store."""

    def __init__(self, between: Callable[[], None], patience_seconds: float) -> None:
        self.thread = threading.current_thread()
        self._between = between
        self._patience_seconds = patience_seconds
        self._leave_by: float | None = None
        self._silent_since: float | None = None
        """Since when the store has given no good answer; a refusal says no more than silence."""

    def look(self) -> None:
        """Look whether the caller is told to leave; what that raises starts the hurry."""
        try:
            self._between()
        except BaseException:
            self.hurry()
            raise

    def hurry(self) -> None:
        """Have only so much time from now on, whatever is asked."""
        if self._leave_by is None:
            self._leave_by = attendance.now() + LEAVING_SECONDS

    def wait_for(self, what: str, call: Callable[[], T]) -> T:
        """Return what `call` returns, or raise what it raises; or leave it to its thread."""
        request = Request(what, self._patience_seconds, self._silent_since)
        answer = _Answer(request, call)
        try:
            answer.begin()
            while not answer.is_there_within(_TICK_SECONDS):
                if self._leave_by is None:
                    self.look()
                    request.expect_sign()
                elif attendance.now() >= self._leave_by:
                    raise StoreSilent(f"cannot {what}: no answer in the time that there was")
            value = answer.take()
        except StoreError as error:
            self._silent_since = None if isinstance(error, ANSWERS) else request.silent_since
            raise
        finally:
            request.is_left = True
        self._silent_since = None
        return value


class _Answer(Generic[T]):
    """What becomes of one request."""

    def __init__(self, request: Request, call: Callable[[], T]) -> None:
        self._request = request
        self._call = call
        self._is_there = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None

    def begin(self) -> None:
        """Ask, in a thread that holds up neither the caller nor the exit."""
        try:
            threading.Thread(target=self._run, name="spotwatch-ask", daemon=True).start()
        except RuntimeError:
            # No thread is to be had, for lack of memory or by a limit: then it is waited for.
            copy_context().run(self._run)

    def is_there_within(self, seconds: float) -> bool:
        """Wait that long at most and tell whether it is over."""
        return self._is_there.wait(seconds)

    def take(self) -> T:
        """Return or raise what has come of it."""
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def _run(self) -> None:
        self._request.attend()
        try:
            self._value = self._call()
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self._error = error
        self._is_there.set()
