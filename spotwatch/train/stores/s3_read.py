# SPDX-License-Identifier: Apache-2.0
"""Bytes out of an S3 bucket: a small object whole, or a range of a large one straight into its place.

An answer that breaks off is asked for again, a range from where it broke. It verifies no content.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from spotwatch.errors import CheckpointCorrupt, StoreError
from spotwatch.train import attendance
from spotwatch.train.stores.s3_bucket import Bucket, code_of

# On a slow link a piece for each of several threads is to come well before the store counts as silent.
_PIECE_BYTES = 2**18


def read_whole(bucket: Bucket, key: str, most_bytes: int) -> tuple[bytes, str]:
    """Return an object and its ETag.

    Raises:
        StoreMissing: there is no such object.
        CheckpointCorrupt: it has more than `most_bytes`.
        StoreError: the store refused.
    """

    def once(s3: Any) -> tuple[bytes, str]:
        answer = s3.get_object(**bucket.at(key))
        pieces: list[bytes] = []
        size = 0
        with contextlib.closing(answer["Body"]) as body:
            for piece in body.iter_chunks(_PIECE_BYTES):
                attendance.moved()
                size += len(piece)
                if size > most_bytes:
                    raise CheckpointCorrupt(f"{bucket.url(key)} has more than {most_bytes} bytes")
                pieces.append(piece)
        return b"".join(pieces), str(answer.get("ETag", ""))

    return bucket.ask("read", key, once)


def read_range(
    bucket: Bucket, key: str, begin: int, target: memoryview, *, ended: threading.Event | None = None
) -> None:
    """Fill `target` from byte `begin` on.

    Raises:
        StoreMissing: there is no such object.
        CheckpointCorrupt: it ends before `target` is full.
        StoreError: the store refused, or answered with other bytes than those.
    """
    if not target:
        # There is no range of nothing.
        bucket.size_bytes(key)
        return
    try:
        bucket.ask("read", key, _Range(bucket.url(key), bucket.at(key), begin, target).fill, ended=ended)
    except StoreError as error:
        if code_of(error.__cause__) == "InvalidRange":
            raise CheckpointCorrupt(f"{bucket.url(key)} ends before byte {begin}") from error
        raise


class _Range:
    """What is still missing of one range."""

    def __init__(self, url: str, at: dict[str, str], begin: int, target: memoryview) -> None:
        self._url = url
        self._object = at
        self._begin = begin
        self._missing = target

    def fill(self, s3: Any) -> None:
        """Fetch the rest; what has come stays when it breaks off."""
        last = self._begin + len(self._missing) - 1
        answer = s3.get_object(**self._object, Range=f"bytes={self._begin}-{last}")
        with contextlib.closing(answer["Body"]) as body:
            self._expect(answer)
            while self._missing:
                count = body.readinto(self._missing[:_PIECE_BYTES])
                if not count:
                    raise ConnectionError(f"{len(self._missing)} bytes of {self._url} did not come")
                attendance.moved()
                self._begin += count
                self._missing = self._missing[count:]

    def _expect(self, answer: Any) -> None:
        size = int(answer.get("ContentLength", len(self._missing)))
        # Status 206 says nothing: rclone sends a range, and says so, with 200.
        came = answer.get("ContentRange", f"bytes 0-{size - 1}/{size}")
        if not came.startswith(f"bytes {self._begin}-"):
            raise StoreError(f"{self._url}: asked for byte {self._begin} on, the store sends {came!r}")
        if size < len(self._missing):
            raise CheckpointCorrupt(f"{self._url} ends at byte {self._begin + size}, too early")
        if size > len(self._missing):
            raise StoreError(
                f"{self._url}: asked for {len(self._missing)} bytes, the store sends {size}; "
                "it must honour Range requests"
            )
