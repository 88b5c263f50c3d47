# SPDX-License-Identifier: Apache-2.0
"""Large bodies into and out of obstore's stores: in parts, with checksums, and its errors in our words.

It chooses no store and knows no credentials. obstore is imported by whoever made the store that is passed in.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from spotwatch.errors import CheckpointCorrupt, StoreError, StoreMissing
from spotwatch.train.pacing import Pace
from spotwatch.train.parts import Body, crc32
from spotwatch.train.store import OnPart

IN_FLIGHT = 8
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


def send(store: Any, key: str, body: Body, on_part: OnPart, pace: Pace, place: str) -> tuple[str, ...]:
    """Store `body` and return each part's CRC-32 in order; nothing of it is copied on the way.

    The calling thread hands over part after part, and obstore's own threads send `IN_FLIGHT` at once.

    Args:
        store: one of obstore's.
        key: of the object.
        body: its parts.
        on_part: called in this thread, several times a second, with the bytes that are surely sent; what it
            raises ends the upload. No object is left, and no parts unless the store does not answer.
        pace: of all uploads.
        place: what people are shown for the object.

    Raises:
        StoreError: the store refused.
        RuntimeError: the calling thread runs an event loop.
    """
    return asyncio.run(_send(store, key, body, on_part, pace, place))


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


class _Feed:
    """The parts of a body for obstore, which asks for the next when it has room."""

    def __init__(self, body: Body, pace: Pace) -> None:
        self.crcs: list[str] = []
        self.failed: BaseException | None = None
        self.ended = False
        self._parts = body.parts()
        self._pace = pace
        self._sizes: list[int] = []

    @property
    def sent_bytes(self) -> int:
        """Return what is surely sent: obstore does not tell, but it holds no more parts than it may."""
        return sum(self._sizes[: max(0, len(self._sizes) - IN_FLIGHT - 1)])

    def __aiter__(self) -> _Feed:
        return self

    async def __anext__(self) -> memoryview:
        try:
            part = next(self._parts, None)
        except BaseException as error:
            self.failed = error
            raise
        if part is None:
            raise StopAsyncIteration
        await asyncio.sleep(self._pace.book(len(part)))
        if self.ended:
            raise _Ended
        self.crcs.append(crc32(part))
        self._sizes.append(len(part))
        return part


async def _send(store: Any, key: str, body: Body, on_part: OnPart, pace: Pace, place: str) -> tuple[str, ...]:
    import obstore  # noqa: PLC0415 - an extra

    feed = _Feed(body, pace)
    sending = asyncio.ensure_future(
        obstore.put_async(
            store,
            key,
            feed,
            use_multipart=body.size_bytes > body.part_bytes,
            chunk_size=body.part_bytes,
            max_concurrency=IN_FLIGHT,
        )
    )
    try:
        while not (await asyncio.wait({sending}, timeout=_TICK_SECONDS))[0]:
            on_part(feed.sent_bytes)
        if (error := sending.exception()) is None:
            on_part(body.size_bytes)
    except BaseException:
        feed.ended = True
        await _end(store, key, sending)
        raise
    if feed.failed is not None:
        raise feed.failed
    if error is not None:
        raise told(error, "write", place) from error
    return tuple(feed.crcs)


async def _end(store: Any, key: str, sending: asyncio.Future[Any]) -> None:
    import obstore  # noqa: PLC0415 - an extra

    done, _ = await asyncio.wait({sending}, timeout=_ABORT_SECONDS)
    if not done:
        sending.cancel()
        await asyncio.wait({sending})
    if not sending.cancelled() and sending.exception() is None:
        # It was whole before it could be told.
        await obstore.delete_async(store, key)
