# SPDX-License-Identifier: Apache-2.0
"""What the sink knows of S3: objects, uploads in parts, conditions, listings; enough for boto3, obstore.

It checks no signature and no checksum, and an ETag says only "another version". Bulk is kept or only counted.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from xml.etree import ElementTree as ET

from _sink_wire import Request, Wire

SMALL_BYTES = 2**20
"""Objects and parts below it are always kept: pointers, manifests, leases."""
# AWS refuses smaller parts, but for the last (docs.aws.amazon.com, "Multipart upload limits", 2026-11-29).
_LEAST_PART_BYTES = 5 * 2**20


class Refused(Exception):
    """An error of S3's.

    Args:
        status: of HTTP.
        code: one that clients know.
        message: for people.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class Blob:
    """The bytes of one body: in memory when small, in a memory file when kept, else only counted.

    Args:
        size_bytes: of the body.
        keep: also bulk.
    """

    def __init__(self, size_bytes: int, *, keep: bool) -> None:
        self.size_bytes = size_bytes
        self.source: bytes | int | None = None
        if keep and size_bytes >= SMALL_BYTES:
            self.source = os.memfd_create("sink")
            weakref.finalize(self, os.close, self.source)
            os.ftruncate(self.source, size_bytes)

    @property
    def small(self) -> bytes:
        """Return the bytes of a small body.

        Raises:
            Refused: it is not small.
        """
        if not isinstance(self.source, bytes):
            raise Refused(400, "MaxMessageLengthExceeded", f"a request of {self.size_bytes} bytes")
        return self.source

    def receive(self, wire: Wire, request: Request) -> None:
        """Take the body of `request`."""
        if isinstance(self.source, int):
            with mmap.mmap(self.source, self.size_bytes) as area, memoryview(area) as view:
                wire.receive(request, view)
        elif self.size_bytes < SMALL_BYTES:
            small = bytearray(self.size_bytes)
            wire.receive(request, memoryview(small))
            self.source = bytes(small)
        else:
            wire.receive(request, None)


@dataclass(frozen=True, slots=True)
class Item:
    """One version of an object."""

    blobs: Sequence[Blob]
    etag: str
    put_at: float

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all blobs."""
        return sum(blob.size_bytes for blob in self.blobs)

    def pieces(self, begin: int, end: int) -> Iterator[tuple[bytes | int, int, int]]:
        """Yield (source, begin, end) for the bytes from `begin` to `end`.

        Raises:
            Refused: they were only counted.
        """
        at = 0
        for blob in self.blobs:
            first, last = max(begin - at, 0), min(end - at, blob.size_bytes)
            if first < last:
                if blob.source is None:
                    raise Refused(409, "Discarded", "the sink only counts bulk; start it with --keep")
                yield blob.source, first, last
            at += blob.size_bytes


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload in parts that is not complete."""

    key: str
    parts: dict[int, tuple[Blob, str]]


class Bucket:
    """All objects, under `bucket/key`; threads may use it at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: dict[str, Item] = {}
        self._uploads: dict[str, Upload] = {}
        self._numbers = count(1)

    def get(self, key: str) -> Item:
        """Return an object; raise `Refused` without one."""
        with self._lock:
            if key not in self._items:
                raise Refused(404, "NoSuchKey", f"no object {key}")
            return self._items[key]

    def put(self, key: str, blobs: Sequence[Blob], conditions: Mapping[str, str]) -> Item:
        """Store an object if `If-None-Match` and `If-Match` of `conditions` allow it."""
        with self._lock:
            return self._put(key, blobs, conditions)

    def delete(self, key: str) -> None:
        """Remove an object, if there is one."""
        with self._lock:
            self._items.pop(key, None)

    def begin(self, key: str) -> str:
        """Return the id of a new upload in parts."""
        with self._lock:
            number = f"{next(self._numbers):032x}"
            self._uploads[number] = Upload(key, {})
            return number

    def part(self, upload_id: str, number: int, blob: Blob) -> str:
        """Add a part to an upload and return its ETag."""
        with self._lock:
            etag = self._etag()
            self._upload(upload_id).parts[number] = (blob, etag)
            return etag

    def complete(self, upload_id: str, body: bytes, conditions: Mapping[str, str]) -> Item:
        """Make an object of the parts that `body` (CompleteMultipartUpload) names."""
        named = [
            (int(part.findtext("{*}PartNumber") or 0), part.findtext("{*}ETag") or "")
            for part in ET.fromstring(body).iter()
            if part.tag.rpartition("}")[2] == "Part"
        ]
        with self._lock:
            upload = self._upload(upload_id)
            if not named or named != sorted(named):
                raise Refused(400, "InvalidPartOrder", "parts are missing or not in order")
            blobs = []
            for number, etag in named:
                blob, known = upload.parts.get(number, (None, ""))
                if blob is None or known.strip('"') != etag.strip('"'):
                    raise Refused(400, "InvalidPart", f"part {number} with ETag {etag} was never sent")
                blobs.append(blob)
            if any(blob.size_bytes < _LEAST_PART_BYTES for blob in blobs[:-1]):
                raise Refused(400, "EntityTooSmall", "a part but the last has less than 5 MiB")
            item = self._put(upload.key, blobs, conditions)
            del self._uploads[upload_id]
            return item

    def abort(self, upload_id: str) -> None:
        """Forget an upload and its parts."""
        with self._lock:
            self._upload(upload_id)
            del self._uploads[upload_id]

    def listing(self, prefix: str) -> list[tuple[str, Item]]:
        """Return the objects whose names begin with `prefix`, in order."""
        with self._lock:
            return sorted((key, item) for key, item in self._items.items() if key.startswith(prefix))

    def uploads(self, prefix: str) -> list[tuple[str, str]]:
        """Return (key, id) of the unfinished uploads below `prefix`, in order."""
        with self._lock:
            found = [(upload.key, number) for number, upload in self._uploads.items()]
        return sorted(pair for pair in found if pair[0].startswith(prefix))

    def _put(self, key: str, blobs: Sequence[Blob], conditions: Mapping[str, str]) -> Item:
        old = self._items.get(key)
        wanted = conditions.get("if-match")
        if (conditions.get("if-none-match") == "*" and old is not None) or (
            wanted is not None and (old is None or wanted.strip('"') != old.etag.strip('"'))
        ):
            raise Refused(412, "PreconditionFailed", f"{key} is not as the condition wants it")
        self._items[key] = Item(blobs, self._etag(), time.monotonic())
        return self._items[key]

    def _upload(self, upload_id: str) -> Upload:
        if upload_id not in self._uploads:
            raise Refused(404, "NoSuchUpload", f"no upload {upload_id}")
        return self._uploads[upload_id]

    def _etag(self) -> str:
        return f'"{next(self._numbers):032x}"'
