# SPDX-License-Identifier: Apache-2.0
"""A mailbox in an S3 bucket, through boto3: conditional reads and whole writes, beside the loop.

One thread at a time asks the bucket, and nobody's exit waits for it. Endpoints, credentials and the rules of
Spaces are those of checkpoints; but a mailbox has a bucket of its own, as keys are scoped by bucket.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from spotwatch.errors import (
    ConfigError,
    Malformed,
    ProviderError,
    StoreError,
    StoreMissing,
    Unavailable,
)
from spotwatch.mail.mailbox_client import Fetched, refusal
from spotwatch.mail.mailbox_form import MAX_OBJECT_BYTES
from spotwatch.train.stores.s3 import aws_options, spaces_bucket
from spotwatch.train.stores.s3_bucket import Bucket, status_of

T = TypeVar("T")

_ANSWER_SECONDS = 15.0
_NOT_MODIFIED, _NOT_FOUND = 304, 404


def bucket_of(url: str, environ: Mapping[str, str]) -> tuple[Bucket, str]:
    """Return the bucket and the prefix that `s3://BUCKET/PREFIX` or `spaces://BUCKET/PREFIX` names.

    Raises:
        ConfigError: it names none, or a variable is missing.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("s3", "spaces") or parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigError("mailbox: write s3://BUCKET/PREFIX or spaces://BUCKET/PREFIX; no credentials in it")
    if not parts.netloc:
        # Never $SPACES_BUCKET: that is where the checkpoints are.
        raise ConfigError(f"mailbox {url!r} names no bucket; write {parts.scheme}://BUCKET/PREFIX")
    prefix = parts.path.strip("/")
    if parts.scheme == "spaces":
        return spaces_bucket(parts.netloc, environ, tries=1), prefix
    return Bucket(parts.netloc, aws_options(environ) | _named(environ), tries=1), prefix


def _named(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the credentials that `environ` names, which need not be those of this process."""
    wanted = {
        "aws_access_key_id": "AWS_ACCESS_KEY_ID",
        "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
        "aws_session_token": "AWS_SESSION_TOKEN",
    }
    found = {option: environ[name] for option, name in wanted.items() if environ.get(name)}
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    return found | ({"region_name": region} if region else {})


class BucketAccess:
    """Objects of one bucket, one request after the other.

    Args:
        bucket: where.
        prefix: before each key; may be empty.
    """

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._busy = threading.Lock()

    async def read(self, etags: Mapping[str, str]) -> Mapping[str, Fetched | ProviderError]:
        """Return what became of each key; when the bucket does not answer, the rest is not asked."""

        def all_of_them() -> dict[str, Fetched | ProviderError]:
            results: dict[str, Fetched | ProviderError] = {}
            down: ProviderError | None = None
            for key, etag in etags.items():
                results[key] = found = down or self._read(key, etag)
                down = found if isinstance(found, Unavailable) else None
            return results

        try:
            return await self._beside(all_of_them)
        except ProviderError as error:
            return dict.fromkeys(etags, error)

    async def write(self, key: str, body: bytes) -> None:
        """Store an object whole.

        Raises:
            ProviderError: the bucket refused, or did not answer.
        """
        at = self._bucket.at(self._prefix + key)
        # Without `no-store` a CDN before the bucket would hand out yesterday's letters.
        extra = {"ContentType": "application/json", "CacheControl": "no-store"}

        def put() -> None:
            try:
                self._bucket.ask("write", at["Key"], lambda s3: s3.put_object(**at, Body=body, **extra))
            except StoreError as error:
                raise _in_words(key, error) from error

        await self._beside(put)

    def close(self) -> None:
        """Close the connections; the next request makes new ones."""
        self._bucket.close()

    def _read(self, key: str, etag: str) -> Fetched | ProviderError:
        at = self._bucket.at(self._prefix + key)
        condition = {"IfNoneMatch": etag} if etag else {}

        def get(s3: Any) -> Fetched:
            answer = s3.get_object(**at, **condition)
            with contextlib.closing(answer["Body"]) as body:
                content = body.read(MAX_OBJECT_BYTES + 1)
            if len(content) > MAX_OBJECT_BYTES:
                raise Malformed(f"{key} has more than {MAX_OBJECT_BYTES} bytes")
            return Fetched(state="new", body=content, etag=str(answer.get("ETag", ""))[:256])

        try:
            return self._bucket.ask("read", at["Key"], get)
        except StoreMissing:
            return Fetched(state="missing")
        except StoreError as error:
            status = status_of(error.__cause__)
            if status == _NOT_MODIFIED and etag:
                return Fetched(state="same", etag=etag)
            return _in_words(key, error)
        except ProviderError as error:
            return error

    async def _beside(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread that may hang for as long as it likes.

        Raises:
            Unavailable: it did not end in time, or an earlier one still has not.
        """
        if not self._busy.acquire(blocking=False):
            raise Unavailable(f"{self._bucket.url(self._prefix)}: an earlier request is still not answered")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                done = _Done(work(), None)
            except Exception as error:  # noqa: BLE001 - handed to whoever waits
                done = _Done(None, error)
            finally:
                self._busy.release()
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits
                loop.call_soon_threadsafe(done.tell, future)

        threading.Thread(target=run, name="spotwatch-mailbox", daemon=True).start()
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await future
        except TimeoutError as error:
            raise Unavailable(
                f"{self._bucket.url(self._prefix)}: no answer within {_ANSWER_SECONDS:g} s"
            ) from error


class BucketReader:
    """Reads a mailbox in a bucket.

    Args:
        bucket: where.
        prefix: before each key; may be empty.
    """

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self._access = BucketAccess(bucket, prefix)

    async def fetch(self, etags: Mapping[str, str]) -> Mapping[str, Fetched | ProviderError]:
        """Return what became of each object."""
        return await self._access.read(etags)

    async def close(self) -> None:
        """Close the connections."""
        self._access.close()


class BucketObjects(BucketReader):
    """Reads and writes a mailbox in a bucket."""

    async def put(self, key: str, body: bytes) -> None:
        """Store an object whole."""
        await self._access.write(key, body)


class _Done:
    """How a thread's work ended."""

    def __init__(self, result: Any, error: Exception | None) -> None:
        self._result = result
        self._error = error

    def tell(self, future: asyncio.Future[Any]) -> None:
        """Hand it to whoever still waits."""
        if future.done():
            return
        if self._error is not None:
            future.set_exception(self._error)
        else:
            future.set_result(self._result)


def _in_words(key: str, error: StoreError) -> ProviderError:
    status = status_of(error.__cause__)
    if not status:
        return Unavailable(str(error))
    known = refusal(key, status)
    return type(known)(str(error), mend=known.mend)
