# SPDX-License-Identifier: Apache-2.0
"""An S3 bucket as a checkpoint store, through boto3: AWS, DigitalOcean Spaces, and what speaks like them.

Credentials come from the environment and are never logged. Whether the bucket keeps versions is its owner's
choice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from spotwatch.errors import CheckpointCorrupt, ConfigError, StoreConflict, StoreError, StoreMissing
from spotwatch.train.parts import Body
from spotwatch.train.store import Entry, OnPart
from spotwatch.train.stores import s3_read, s3_upload
from spotwatch.train.stores.bulk import Bulk, choose_bulk
from spotwatch.train.stores.pacing import Pace
from spotwatch.train.stores.probe import NotConditional, probe
from spotwatch.train.stores.s3_bucket import TRIES, Bucket, Times, code_of, status_of

log = logging.getLogger("spotwatch.train")

_PRECONDITION_FAILED, _NOT_IMPLEMENTED = 412, 501
# AWS says so of a write that met another one; `Bucket.ask` has asked again before this is seen.
_BUSY = frozenset({"ConditionalRequestConflict", "OperationAborted"})
_REFUSING = frozenset({"NotImplemented", "InvalidArgument", "InvalidRequest"})


def aws_options(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what boto3's client is to be given for `AWS_*` variables; it reads the rest itself."""
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    return {"endpoint_url": endpoint} if endpoint else {}


def open_s3(bucket: str, prefix: str, environ: Mapping[str, str], pace: Pace) -> S3Store:
    """Return a store on S3, from the variables that boto3 knows."""
    return _open(Bucket(bucket, aws_options(environ)), prefix, environ, pace)


def open_spaces(bucket: str, prefix: str, environ: Mapping[str, str], pace: Pace) -> S3Store:
    """Return a store on DigitalOcean Spaces, from the variables that `spaces_bucket` names.

    Raises:
        ConfigError: a variable is missing.
    """
    return _open(spaces_bucket(bucket, environ), prefix, environ, pace)


def spaces_bucket(
    bucket: str, environ: Mapping[str, str], *, tries: int = TRIES, times: Times | None = None
) -> Bucket:
    """Return a bucket of DigitalOcean Spaces, from `SPACES_KEY`, `_SECRET`, `_REGION` and `_BUCKET`.

    `SPACES_ENDPOINT` replaces the region's public endpoint, for a proxy or a test.

    Raises:
        ConfigError: a variable is missing.
    """
    endpoint = environ.get("SPACES_ENDPOINT")
    needed = ["SPACES_KEY", "SPACES_SECRET"] + ["SPACES_REGION"] * (not endpoint)
    problems = [f"{name} is not set; spaces:// needs it" for name in needed if not environ.get(name)]
    bucket = bucket or environ.get("SPACES_BUCKET", "")
    if not bucket:
        problems.append("SPACES_BUCKET is not set and the URL names no bucket; write spaces://bucket/prefix")
    if problems:
        raise ConfigError(*problems)
    region = environ.get("SPACES_REGION") or "us-east-1"
    options = {
        "endpoint_url": endpoint or f"https://{region}.digitaloceanspaces.com",
        "region_name": region,
        "aws_access_key_id": environ["SPACES_KEY"],
        "aws_secret_access_key": environ["SPACES_SECRET"],
    }
    return Bucket(bucket, options, scheme="spaces", tries=tries, times=times)


def _open(bucket: Bucket, prefix: str, environ: Mapping[str, str], pace: Pace) -> S3Store:
    return S3Store(bucket, prefix, pace=pace, bulk=choose_bulk(bucket, pace, environ))


class S3Store:
    """Keeps each object under `prefix` in `bucket`.

    Args:
        bucket: where.
        prefix: without slashes at its ends.
        pace: of uploads; None: no limit.
        bulk: what moves large bodies; None: this store, in this process.
    """

    def __init__(
        self, bucket: Bucket, prefix: str, *, pace: Pace | None = None, bulk: Bulk | None = None
    ) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._pace = pace or Pace(None)
        self._bulk = bulk
        self._lock = threading.Lock()
        self._is_conditional: bool | None = None

    @property
    def url(self) -> str:
        """Return the root, as given."""
        return self._bucket.url(self._prefix)

    @property
    def is_conditional(self) -> bool:
        """Tell whether the bucket enforces If-Match and If-None-Match."""
        with self._lock:
            if self._is_conditional is None:
                self._is_conditional = probe(self)
            return self._is_conditional

    def put(self, key: str, body: bytes) -> None:
        """Store `body`; S3 shows an object only when it is whole."""
        at = self._at(key)
        self._ask("write", key, lambda s3: s3.put_object(**at, Body=body))

    def put_if(self, key: str, body: bytes, version: str | None) -> str:
        """Store `body` by If-None-Match or If-Match and return its ETag."""
        at = self._at(key)
        condition = {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
        try:
            answer = self._ask("write", key, lambda s3: s3.put_object(**at, Body=body, **condition))
        except StoreError as error:
            return self._refused(key, body, error)
        return str(answer["ETag"])

    def get(self, key: str, *, most_bytes: int) -> bytes:
        """Return the whole object."""
        return self.read(key, most_bytes=most_bytes)[0]

    def read(self, key: str, *, most_bytes: int) -> tuple[bytes, str]:
        """Return the whole object and its ETag."""
        return s3_read.read_whole(self._bucket, self._key(key), most_bytes)

    def upload(self, key: str, body: Body, on_part: OnPart) -> tuple[str, ...]:
        """Store a large body in parts and compare the size that the bucket reports."""
        full = self._key(key)
        crcs = self._bulk.upload(full, body, on_part) if self._bulk else None
        if crcs is None:
            crcs = s3_upload.upload(self._bucket, full, body, on_part, self._pace)
        size = self.size_bytes(key)
        if size != body.size_bytes:
            self.delete(key)
            raise StoreError(
                f"{self._bucket.url(full)} has {size} bytes after {body.size_bytes} were sent; "
                "it is removed, save again"
            )
        return crcs

    def read_into(self, key: str, begin: int, target: memoryview) -> None:
        """Fill `target` by a Range request."""
        full = self._key(key)
        if self._bulk is None or not self._bulk.read_into(full, begin, target):
            s3_read.read_range(self._bucket, full, begin, target)

    def size_bytes(self, key: str) -> int:
        """Return the size that the bucket reports."""
        return self._bucket.size_bytes(self._key(key))

    def list(self) -> Iterator[Entry]:
        """Yield every object below the root, page by page."""
        root = self._key("")
        more: dict[str, str] = {}
        while True:
            page = self._list("list_objects_v2", more)
            for item in page.get("Contents", ()):
                # Some tools make an object without a name, to have a folder.
                if key := item["Key"][len(root) :]:
                    yield Entry(key, int(item["Size"]))
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, key: str) -> None:
        """Remove the object. One at a time: the bulk call needs a checksum that some stores do not know."""
        at = self._at(key)
        self._ask("delete", key, lambda s3: s3.delete_object(**at))

    def abort_uploads(self) -> int:
        """Remove the parts of uploads below the root that were never finished; return how many uploads."""
        uploads = list(self._uploads())
        for full, upload_id in uploads:
            self._abort(full, upload_id)
        return len(uploads)

    def prepare(self, size_bytes: int) -> None:
        """Start what an upload of that size will need and takes long to start; return at once."""
        if self._bulk:
            self._bulk.prepare(size_bytes)

    def close(self) -> None:
        """End what was started for large bodies, and the connections."""
        if self._bulk:
            self._bulk.close()
        self._bucket.close()

    def _list(self, method: str, more: Mapping[str, str]) -> Any:
        root = self._key("")

        def once(s3: Any) -> Any:
            return getattr(s3, method)(Bucket=self._bucket.name, Prefix=root, **more)

        return self._ask("list", "", once)

    def _uploads(self) -> Iterator[tuple[str, str]]:
        # Full keys and ids.
        more: dict[str, str] = {}
        while True:
            try:
                page = self._list("list_multipart_uploads", more)
            except StoreError as error:
                if code_of(error.__cause__) == "NoSuchUpload":
                    return  # rclone's word for a bucket that has none
                if status_of(error.__cause__) != _NOT_IMPLEMENTED:
                    raise
                log.info("parts of broken uploads stay in %s: it cannot list them", self.url)
                return
            for item in page.get("Uploads", ()):
                # Some stores list those of the whole bucket.
                if item["Key"].startswith(self._key("")):
                    yield item["Key"], item["UploadId"]
            if not page.get("IsTruncated"):
                return
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def _abort(self, full: str, upload_id: str) -> None:
        at = self._bucket.at(full)
        try:
            self._bucket.ask(
                "abort the upload of", full, lambda s3: s3.abort_multipart_upload(**at, UploadId=upload_id)
            )
        except StoreError as error:
            if code_of(error.__cause__) != "NoSuchUpload":
                raise

    def _refused(self, key: str, body: bytes, error: StoreError) -> str:
        status, code = status_of(error.__cause__), code_of(error.__cause__)
        if status == _NOT_IMPLEMENTED or code in _REFUSING:
            raise NotConditional(str(error)) from error
        if status == _PRECONDITION_FAILED or code in _BUSY:
            # It may be our own earlier try, whose answer was lost, that now stands in the way.
            try:
                found, version = self.read(key, most_bytes=len(body))
            except (StoreMissing, CheckpointCorrupt):
                found = None
            if found == body:
                return version
        elif not isinstance(error, StoreMissing):
            raise error
        raise StoreConflict(f"{self._bucket.url(self._key(key))} was written by another: {error}") from error

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def _at(self, key: str) -> dict[str, str]:
        return self._bucket.at(self._key(key))

    def _ask(self, deed: str, key: str, call: Callable[[Any], Any]) -> Any:
        return self._bucket.ask(deed, self._key(key), call)
