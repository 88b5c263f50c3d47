# SPDX-License-Identifier: Apache-2.0
"""An S3 bucket as a checkpoint store, through boto3: AWS, DigitalOcean Spaces, and what speaks like them.

Never through botocore's CRT mode: it does not honour an endpoint. Credentials come from the environment and
are never logged. Whether the bucket keeps versions, or for how long, is the user's choice.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from spotwatch.errors import CheckpointCorrupt, ConfigError, StoreError, StoreMissing
from spotwatch.train.bulk import Bulk
from spotwatch.train.pacing import Pace
from spotwatch.train.store import CHUNK_BYTES, Entry

# S3 allows 10,000 parts of 5 MiB to 5 GiB (docs.aws.amazon.com, "Multipart upload limits", 2026-11-29).
_LEAST_PART_BYTES = 16 * 2**20
_MOST_PARTS = 9_000
_MISSING = frozenset({"NoSuchKey", "404", "NotFound"})


def aws_options(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what boto3's client is to be given for `AWS_*` variables; it reads the rest itself."""
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    return {"endpoint_url": endpoint} if endpoint else {}


def open_s3(bucket: str, prefix: str, environ: Mapping[str, str], pace: Pace) -> S3Store:
    """Return a store on S3, from the variables that boto3 knows."""
    return S3Store(bucket, prefix, aws_options(environ), pace=pace)


def open_spaces(bucket: str, prefix: str, environ: Mapping[str, str], pace: Pace) -> S3Store:
    """Return a store on DigitalOcean Spaces, from `SPACES_KEY`, `_SECRET`, `_REGION` and `_BUCKET`.

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
    return S3Store(bucket, prefix, options, scheme="spaces", pace=pace)


class S3Store:
    """Keeps each object under `prefix` in `bucket`.

    Args:
        bucket: it must exist.
        prefix: without slashes at its ends.
        options: for boto3's client: endpoint, region, credentials.
        scheme: how the URL shown to people begins.
        pace: of uploads; None: no limit.
        bulk: what moves large bodies; None: this store, through boto3.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str,
        options: Mapping[str, Any],
        *,
        scheme: str = "s3",
        pace: Pace | None = None,
        bulk: Bulk | None = None,
    ) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._options = dict(options)
        self._scheme = scheme
        self._pace = pace or Pace(None)
        self._bulk = bulk
        self._lock = threading.Lock()
        self._made: Any = None

    @property
    def url(self) -> str:
        """Return the root, as given."""
        return f"{self._scheme}://{self._bucket}/{self._prefix}"

    def put(self, key: str, body: bytes | memoryview) -> None:
        """Store `body`, in parts when it is large; S3 shows an object only when it is whole."""
        from boto3.s3.transfer import TransferConfig  # noqa: PLC0415 - boto3 is imported when first used

        part = max(_LEAST_PART_BYTES, -(-len(body) // _MOST_PARTS))
        config = TransferConfig(
            multipart_threshold=part,
            multipart_chunksize=part,
            max_concurrency=8,
            # Left to choose, boto3 may take CRT on some machine types, and that goes to AWS whatever we say.
            preferred_transfer_client="classic",
        )
        with self._told("write", key) as client:
            client.upload_fileobj(_Reader(body), self._bucket, self._key(key), Config=config)

    def get(self, key: str, *, most_bytes: int) -> bytes:
        """Return the whole object."""
        pieces: list[bytes] = []
        size = 0
        for piece in self.stream(key):
            size += len(piece)
            if size > most_bytes:
                raise CheckpointCorrupt(f"{self.url}/{key} has more than {most_bytes} bytes")
            pieces.append(piece)
        return b"".join(pieces)

    def stream(self, key: str) -> Iterator[bytes]:
        """Yield the object in pieces."""
        with self._told("read", key) as client:
            body = client.get_object(Bucket=self._bucket, Key=self._key(key))["Body"]
            with contextlib.closing(body):
                yield from body.iter_chunks(CHUNK_BYTES)

    def size_bytes(self, key: str) -> int:
        """Return the size that the store reports."""
        with self._told("read", key) as client:
            head = client.head_object(Bucket=self._bucket, Key=self._key(key))
        return int(head["ContentLength"])

    def list(self) -> Iterator[Entry]:
        """Yield every object below the root, page by page."""
        root = f"{self._prefix}/"
        with self._told("list", "") as client:
            for page in client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=root):
                for item in page.get("Contents", ()):
                    yield Entry(item["Key"][len(root) :], int(item["Size"]))

    def delete(self, key: str) -> None:
        """Remove the object. One at a time: the bulk call needs a checksum that some stores do not know."""
        with self._told("delete", key) as client:
            client.delete_object(Bucket=self._bucket, Key=self._key(key))

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def _client(self) -> Any:
        import boto3  # noqa: PLC0415 - a second, and only trainers that save to S3 pay it
        from botocore.config import Config  # noqa: PLC0415 - as above

        with self._lock:
            if self._made is None:
                # Other stores than AWS may refuse the newer checksum trailers; ours are in the manifest.
                checksums = (
                    {
                        "request_checksum_calculation": "when_required",
                        "response_checksum_validation": "when_required",
                    }
                    if self._options.get("endpoint_url")
                    else {}
                )
                config = Config(
                    connect_timeout=5,
                    read_timeout=60,
                    retries={"mode": "standard", "total_max_attempts": 5},
                    max_pool_connections=16,
                    **checksums,
                )
                self._made = boto3.session.Session().client("s3", config=config, **self._options)
            return self._made

    @contextlib.contextmanager
    def _told(self, deed: str, key: str) -> Iterator[Any]:
        from boto3.exceptions import Boto3Error  # noqa: PLC0415 - as above
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - as above

        try:
            yield self._client()
        except ClientError as error:
            told = error.response.get("Error", {})
            text = f"cannot {deed} {self.url}/{key}: {told.get('Code')} {told.get('Message', '')}".rstrip()
            if told.get("Code") in _MISSING:
                raise StoreMissing(text) from error
            raise StoreError(text) from error
        except (BotoCoreError, Boto3Error, OSError) as error:
            raise StoreError(f"cannot {deed} {self.url}/{key}: {error}") from error


class _Reader(io.RawIOBase):
    """A buffer as a file, so that boto3 copies one part at a time and never the whole."""

    def __init__(self, body: bytes | memoryview) -> None:
        self._view = memoryview(body).cast("B")
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._view)}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, target: Any) -> int:
        piece = self._view[self._at : self._at + len(target)]
        target[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)
