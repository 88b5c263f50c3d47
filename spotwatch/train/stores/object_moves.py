# SPDX-License-Identifier: Apache-2.0
"""Large bodies into and out of obstore's stores: in parts, with checksums, and its errors in our words.

It chooses no store and knows no credentials. It never calls obstore's asynchronous functions: their threads
still hold on to Python when the result is there, and an interpreter that ends meanwhile is aborted (obstore
0.12.1: 20 of 40 processes that ended right after an upload).
"""

from __future__ import annotations

import atexit
import os
import re
import threading
from functools import cache
from typing import Any

from spotwatch.errors import CheckpointCorrupt, StoreError, StoreMissing
from spotwatch.train import attendance
from spotwatch.train.parts import Body, crc32
from spotwatch.train.store import OnPart
from spotwatch.train.stores.acked import Acked, Moved
from spotwatch.train.stores.pacing import Pace

IN_FLIGHT = 8
PART_SECONDS = 3600.0
"""What one request that sends a part may take: eight of 16 MiB at once take 45 minutes at 50 kB/s."""
_TICK_SECONDS = 0.25
# After this, what is under way is dropped rather than ended in order.
_ABORT_SECONDS = 5.0
# A gigabyte may be on its way in small pieces of this, for each of which the lock is taken once.
_PIECE_BYTES = 2**20
_CODE = re.compile(r"<Code>([^<]*)</Code>")
# Azure puts its numbers and the time below the message.
_MESSAGE = re.compile(r"<Message>([^<\n]*)")
_QUERY = re.compile(r"\?\S*")
_MISSING = frozenset({"", "NoSuchKey", "BlobNotFound"})
# A range that begins after the end, as HTTP puts it, and as obstore itself does.
_BEYOND = (" 416 ", "Wanted range starting at")


def send(
    store: Any, key: str, body: Body, on_part: OnPart, pace: Pace, place: str, acked: Acked
) -> tuple[str, ...]:
    """Store `body` and return each part's CRC-32 in order; nothing of it is copied on the way.

    A thread hands over part after part, and obstore's own threads send `IN_FLIGHT` at once.

    Args:
        store: one of obstore's.
        key: of the object.
        body: its parts.
        on_part: called in the calling thread, several times a second, with the bytes that have left so far;
            what it raises ends the upload. No object is left, and no parts unless the store does not answer.
        pace: of all uploads.
        place: what people are shown for the object.
        acked: of the connections that `store` makes.

    Raises:
        StoreError: the store refused, or has taken nothing for three minutes.
    """
    moved = Moved(acked, pace, place)
    sending = _Sending(store, key, body, pace)
    try:
        while not sending.is_over(_TICK_SECONDS):
            on_part(moved.bytes(sending.sent_bytes))
        if sending.error is None:
            on_part(moved.bytes(body.size_bytes))
    except BaseException:
        sending.end()
        raise
    if sending.failed is not None:
        raise sending.failed
    if sending.error is not None:
        raise told(sending.error, "write", place) from sending.error
    return tuple(sending.crcs)


def read_into(store: Any, key: str, begin: int, target: memoryview, place: str) -> None:
    """Fill `target` from byte `begin` on; obstore itself goes on where an answer broke off.

    Args:
        store: one of obstore's.
        key: of the object.
        begin: the first byte.
        target: of any size.
        place: what people are shown for the object.

    Raises:
        StoreMissing: there is no such object.
        CheckpointCorrupt: the object ends before `target` is full.
        StoreError: the store refused.
    """
    import obstore  # noqa: PLC0415 - an extra

    try:
        if not target:
            # There is no range of nothing.
            obstore.head(store, key)
            return
        answer = obstore.get(store, key, options={"range": (begin, begin + len(target))})
        begun, at = answer.range[0], 0
        for piece in answer.stream(min_chunk_size=_PIECE_BYTES):
            came = memoryview(piece)[: len(target) - at]
            attendance.moved()
            target[at : at + len(came)] = came
            at += len(came)
    except Exception as error:
        if any(sign in str(error) for sign in _BEYOND):
            raise CheckpointCorrupt(f"{place} ends before byte {begin}") from error
        raise told(error, "read", place) from error
    if begun != begin:
        raise StoreError(f"{place}: asked for byte {begin} on, the store sent byte {begun} on")
    if at < len(target):
        raise CheckpointCorrupt(f"{place} ends at byte {begin + at}, too early")


def is_usable() -> bool:
    """Tell whether obstore works in this process: not in one that was forked after it was used here.

    Its threads are not forked with the rest, and each call would wait for them for ever (obstore 0.12.1).
    """
    return _first_user() == os.getpid()


@cache
def _first_user() -> int:
    # Kept by a process that is forked, which so knows that it is another.
    return os.getpid()


def told(error: BaseException, deed: str, place: str) -> StoreError:
    """Return an error of obstore in our words, with the store's code and message where it gave any."""
    code, message = (
        found.group(1) if (found := part.search(str(error))) else "" for part in (_CODE, _MESSAGE)
    )
    whole = f"cannot {deed} {place}: {f'{code} {message}'.strip() or first_line(error)}"
    if isinstance(error, FileNotFoundError) and code in _MISSING:
        return StoreMissing(whole)
    if type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError"):
        whole += "; check the credentials, the bucket's policy and the clock"
    return StoreError(whole)


def first_line(error: BaseException) -> str:
    """Return what obstore says to people, without the query of a URL, which may hold a signature."""
    return _QUERY.sub("", str(error).partition("\n")[0])


class _Ended(Exception):
    """Told to obstore, so that it removes the parts."""


class _Sending:
    """One upload in a thread, and the parts of its body for obstore, which asks when it has room."""

    def __init__(self, store: Any, key: str, body: Body, pace: Pace) -> None:
        self.crcs: list[str] = []
        self.error: BaseException | None = None
        self.failed: BaseException | None = None
        """What the body itself raised."""
        self._store = store
        self._key = key
        self._body = body
        self._pace = pace
        self._parts = body.parts()
        self._sizes: list[int] = []
        self._ended = threading.Event()
        self._is_removed = False
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name="spotwatch-obstore", daemon=True)
        # An interpreter that ends in the middle would leave the parts, and obstore calling into nothing.
        atexit.register(self.end)
        self._thread.start()

    @property
    def sent_bytes(self) -> int:
        """Return what is surely sent: obstore does not tell, but it holds no more parts than it may."""
        return sum(self._sizes[: max(0, len(self._sizes) - IN_FLIGHT - 1)])

    def is_over(self, timeout_seconds: float) -> bool:
        """Wait that long at most and tell whether the upload is over, in one way or another."""
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            return False
        atexit.unregister(self.end)
        return True

    def end(self) -> None:
        """End the upload, so that it leaves no object; wait a little for the store to agree."""
        if os.getpid() != self._owner:
            return
        # Asked again at the end of the program, a store that hangs is not waited for twice.
        seconds = 0.0 if self._ended.is_set() else _ABORT_SECONDS
        self._ended.set()
        if self.is_over(seconds) and self.error is None and not self._is_removed:
            self._remove()

    def __iter__(self) -> _Sending:
        return self

    def __next__(self) -> memoryview:
        try:
            part = next(self._parts)
        except StopIteration:
            raise
        except BaseException as error:
            self.failed = error
            raise
        self._pace.wait(len(part), self._ended)
        if self._ended.is_set():
            raise _Ended
        self.crcs.append(crc32(part))
        self._sizes.append(len(part))
        return part

    def _run(self) -> None:
        import obstore  # noqa: PLC0415 - an extra

        try:
            obstore.put(
                self._store,
                self._key,
                self,
                use_multipart=self._body.size_bytes > self._body.part_bytes,
                chunk_size=self._body.part_bytes,
                max_concurrency=IN_FLIGHT,
            )
            if self._ended.is_set():
                # It was whole before it could be told.
                self._remove()
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            self.error = error

    def _remove(self) -> None:
        import obstore  # noqa: PLC0415 - an extra

        self._is_removed = True
        obstore.delete(self._store, self._key)
