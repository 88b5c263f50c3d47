# SPDX-License-Identifier: Apache-2.0
"""A large body into an S3 bucket: in parts, some at once, each with its checksum.

It is the general way, in this process and under its interpreter lock; `bulk` knows quicker ones.
"""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from spotwatch.errors import StoreError, StoreMissing
from spotwatch.train.parts import Body, crc32
from spotwatch.train.store import OnPart
from spotwatch.train.stores.acked import Moved
from spotwatch.train.stores.crew import Crew
from spotwatch.train.stores.pacing import Pace
from spotwatch.train.stores.s3_bucket import Bucket, code_of

THREADS = 8
_TICK_SECONDS = 0.5


def upload(
    bucket: Bucket, key: str, body: Body, on_part: OnPart, pace: Pace, *, threads: int = THREADS
) -> tuple[str, ...]:
    """Store `body` and return each part's CRC-32 in order; a body of one part goes as one object.

    Args:
        bucket: where.
        key: whole, with the prefix.
        body: at most `threads` of its parts are held at once.
        on_part: called in this thread with the bytes that have left so far, about twice a second; what it
            raises ends the upload.
        pace: of all uploads.
        threads: parts under way at once.

    Raises:
        StoreError: the store refused, or has taken nothing for three minutes; no object and, as far as the
            store lets us, no parts are left.
    """
    one = _Upload(bucket, key, body, on_part, pace, threads)
    return one.run() if body.size_bytes > body.part_bytes else one.run_whole()


class _Upload:
    """One upload, in parts or whole."""

    def __init__(
        self, bucket: Bucket, key: str, body: Body, on_part: OnPart, pace: Pace, threads: int
    ) -> None:
        self._bucket = bucket.sender
        self._key = key
        self._body = body
        self._on_part = on_part
        self._pace = pace
        self._threads = threads
        self._ended = threading.Event()
        self._id = ""
        self._moved = Moved(self._bucket.acked, pace, bucket.url(key))

    def run_whole(self) -> tuple[str, ...]:
        """Send one part as one object; else leave nothing."""
        part = next(self._body.parts(), memoryview(b""))
        with Crew(1, "spotwatch-part") as crew:
            sending = crew.submit(self._whole, part)
            try:
                while not wait([sending], timeout=_TICK_SECONDS).done:
                    self._tell(0)
                crc = sending.result()
                self._tell(len(part))
            except BaseException as error:
                self._ended.set()
                if wait([sending]).done and sending.exception() is None:
                    _leave_nothing(error, lambda: _delete(self._bucket, self._key))
                raise
        return (crc,) if part else ()

    def run(self) -> tuple[str, ...]:
        """Send the parts and put them together; else leave nothing."""
        kind = {"ChecksumAlgorithm": "CRC32"} if self._bucket.is_aws else {}
        begun = self._ask(lambda s3: s3.create_multipart_upload(**self._bucket.at(self._key), **kind))
        self._id = begun["UploadId"]
        try:
            sent = self._send()
            self._complete(sent)
        except BaseException as error:
            _leave_nothing(error, self._abort)
            raise
        return tuple(crc for crc, _ in sent)

    def _send(self) -> list[tuple[str, str]]:
        # CRC and ETag of each part, in order.
        pending: set[Future[tuple[str, str]]] = set()
        everything: list[Future[tuple[str, str]]] = []
        sizes: dict[Future[tuple[str, str]], int] = {}
        sent_bytes = 0

        def collect(most: int) -> None:
            nonlocal pending, sent_bytes
            while len(pending) > most:
                done, pending = wait(pending, timeout=_TICK_SECONDS, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                    sent_bytes += sizes.pop(future)
                self._tell(sent_bytes)

        with Crew(self._threads, "spotwatch-part") as crew:
            try:
                for number, part in enumerate(self._body.parts(), 1):
                    future = crew.submit(self._part, number, part)
                    pending.add(future)
                    everything.append(future)
                    sizes[future] = len(part)
                    del part
                    collect(self._threads - 1)
                collect(0)
            except BaseException:
                # The crew waits for its threads: when this returns, nobody reads the body any more.
                self._ended.set()
                raise
        return [future.result() for future in everything]

    def _tell(self, sent_bytes: int) -> None:
        self._on_part(self._moved.bytes(sent_bytes))

    def _whole(self, part: memoryview) -> str:
        crc = crc32(part)
        self._pace.wait(len(part), self._ended)
        at = self._bucket.at(self._key) | _checksum(self._bucket, crc)
        self._ask(lambda s3: s3.put_object(**at, Body=Reader(part, self._ended), ContentLength=len(part)))
        return crc

    def _part(self, number: int, part: memoryview) -> tuple[str, str]:
        crc = crc32(part)
        self._pace.wait(len(part), self._ended)
        answer = self._ask(
            lambda s3: s3.upload_part(
                **self._bucket.at(self._key),
                UploadId=self._id,
                PartNumber=number,
                Body=Reader(part, self._ended),
                ContentLength=len(part),
                **_checksum(self._bucket, crc),
            )
        )
        return crc, answer["ETag"]

    def _complete(self, sent: list[tuple[str, str]]) -> None:
        parts = [
            {"PartNumber": number, "ETag": etag, **_checksum(self._bucket, crc)}
            for number, (crc, etag) in enumerate(sent, 1)
        ]
        try:
            self._ask(
                lambda s3: s3.complete_multipart_upload(
                    **self._bucket.at(self._key), UploadId=self._id, MultipartUpload={"Parts": parts}
                )
            )
        except StoreError as error:
            # Our first try had succeeded and its answer was lost. Nobody else writes under this name.
            if code_of(error.__cause__) != "NoSuchUpload" or not self._is_whole():
                raise

    def _is_whole(self) -> bool:
        try:
            return self._bucket.size_bytes(self._key) == self._body.size_bytes
        except StoreMissing:
            return False

    def _abort(self) -> None:
        at = self._bucket.at(self._key)
        try:
            self._bucket.ask(
                "abort the upload of",
                self._key,
                lambda s3: s3.abort_multipart_upload(**at, UploadId=self._id),
            )
        except StoreError as error:
            if code_of(error.__cause__) != "NoSuchUpload":
                raise
            # Put together after all, by a try whose answer was lost.
            _delete(self._bucket, self._key)

    def _ask(self, call: Any) -> Any:
        return self._bucket.ask("write", self._key, call, ended=self._ended)


def _leave_nothing(why: BaseException, remove: Callable[[], None]) -> None:
    try:
        remove()
    except StoreError as error:
        why.add_note(f"what was sent stays in the bucket: {error}")


def _delete(bucket: Bucket, key: str) -> None:
    bucket.ask("delete", key, lambda s3: s3.delete_object(**bucket.at(key)))


def _checksum(bucket: Bucket, crc: str) -> dict[str, str]:
    # AWS compares it with what arrived. Others may not know it; see "Bucket.client".
    return {"ChecksumCRC32": base64.b64encode(bytes.fromhex(crc)).decode()} if bucket.is_aws else {}


class _Ended(BaseException):
    """Leaves boto3 from within a request; no error of a request, so that nobody between takes it for one."""


class Reader(io.RawIOBase):
    """A buffer as a file, so that boto3 copies a piece at a time and never the whole.

    Args:
        view: the bytes.
        ended: when set, the next read ends the request.
    """

    def __init__(self, view: memoryview, ended: threading.Event | None = None) -> None:
        self._view = view
        self._at = 0
        self._ended = ended or threading.Event()

    def __len__(self) -> int:
        return len(self._view)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte and return where that is."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._view)}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        """Return which byte is next."""
        return self._at

    def readinto(self, target: Any) -> int:
        """Fill `target` and return with how much; raise when nobody wants it any more."""
        if self._ended.is_set():
            raise _Ended
        piece = self._view[self._at : self._at + len(target)]
        target[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)
