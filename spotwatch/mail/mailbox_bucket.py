# SPDX-License-Identifier: Apache-2.0
"""A mailbox in an S3 bucket, through boto3: conditional reads and whole writes, beside the loop.

A thread at most asks for each object, and nobody's exit waits for it. Endpoints, credentials and the rules of
Spaces are those of checkpoints; but a mailbox has a bucket of its own, as keys are scoped by bucket.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from spotwatch.errors import (
    ConfigError,
    Denied,
    Malformed,
    ProviderError,
    StoreError,
    StoreMissing,
    Unavailable,
)
from spotwatch.mail.mailbox_client import Fetched, refusal
from spotwatch.mail.mailbox_form import MAX_OBJECT_BYTES
from spotwatch.train.stores.s3 import aws_options, spaces_bucket
from spotwatch.train.stores.s3_bucket import Bucket, Times, code_of, status_of
from spotwatch.untrusted import printable

T = TypeVar("T")

_LACKING = frozenset({"NoCredentialsError", "PartialCredentialsError"})
_MEND_LACKING = (
    "give the mailbox's key: on a Droplet in provider.digitalocean.mailbox_credentials_file, on the relay in "
    "the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or SPACES_KEY and SPACES_SECRET)"
)
_MEND_AWAY = (
    "see whether the bucket's endpoint can be reached from here (firewall, DNS, its status page), and is the "
    "right one: region, address"
)

SCHEMES = ("s3", "spaces")
# "General purpose bucket naming rules" (Amazon S3 User Guide, 2026-11-29); Spaces' are narrower.
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ANSWER_SECONDS = 15.0
_TIMES = Times(5, 15)
"""A thread that is not waited for any more ends by itself; until then its object is not asked for again."""
_NOT_MODIFIED, _NOT_FOUND = 304, 404


def bucket_of(url: str, environ: Mapping[str, str]) -> tuple[Bucket, str]:
    """Return the bucket and the prefix that `s3://BUCKET/PREFIX` or `spaces://BUCKET/PREFIX` names.

    Raises:
        ConfigError: it names none, or a variable is missing.
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigError("mailbox: write s3://BUCKET/PREFIX or spaces://BUCKET/PREFIX; no credentials in it")
    if not parts.netloc:
        # Never $SPACES_BUCKET: that is where the checkpoints are.
        raise ConfigError(f"mailbox {url!r} names no bucket; write {parts.scheme}://BUCKET/PREFIX")
    if not _BUCKET.fullmatch(parts.netloc):
        raise ConfigError(
            f"mailbox {url!r}: {parts.netloc!r} is no bucket's name; one has 3 to 63 small letters, digits, "
            "dots and dashes"
        )
    prefix = parts.path.strip("/")
    if parts.scheme == "spaces":
        return spaces_bucket(parts.netloc, environ, tries=1, times=_TIMES), prefix
    return Bucket(parts.netloc, aws_options(environ) | _named(environ), tries=1, times=_TIMES), prefix


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


class _Silent(Unavailable):
    """One object does not answer; another might."""


class BucketAccess:
    """Objects of one bucket, one request for each at a time.

    Args:
        bucket: where.
        prefix: before each key; may be empty.
    """

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._busy: set[str] = set()

    async def read(self, etags: Mapping[str, str]) -> Mapping[str, Fetched | ProviderError]:
        """Return what became of each key; when the bucket is not there, the rest is not asked."""
        results: dict[str, Fetched | ProviderError] = {}
        left = list(etags)
        while left:
            key = left.pop(0)
            found = results[key] = await self._get(key, etags[key])
            if isinstance(found, _Silent):
                # Perhaps this object alone: the others have their own time, and are asked side by side.
                others = await asyncio.gather(*(self._get(other, etags[other]) for other in left))
                return results | dict(zip(left, others, strict=True))
            if isinstance(found, Unavailable):
                return results | dict.fromkeys(left, found)
        return results

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

        await self._beside(key, put)

    def close(self) -> None:
        """Close the connections; the next request makes new ones."""
        self._bucket.close()

    async def _get(self, key: str, etag: str) -> Fetched | ProviderError:
        try:
            return await self._beside(key, lambda: self._read(key, etag))
        except ProviderError as error:
            return error

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
        except Exception as error:  # noqa: BLE001 - botocore's parsers raise what they like at a bad header
            return Malformed(f"{key}: {type(error).__name__}: {printable(str(error), 120)}")

    async def _beside(self, key: str, work: Callable[[], T]) -> T:
        """Run `work` with one object in a thread that may hang for as long as it likes.

        Raises:
            Unavailable: it did not end in time, an earlier one still has not, or no thread can be had.
        """
        where = self._bucket.url(self._prefix + key)
        if key in self._busy:
            raise _Silent(f"{where}: an earlier request is still not answered")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                done = _Done(work(), None)
            except Exception as error:  # noqa: BLE001 - handed to whoever waits
                done = _Done(None, error)
            finally:
                self._busy.discard(key)
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits
                loop.call_soon_threadsafe(done.tell, future)

        self._busy.add(key)
        try:
            threading.Thread(target=run, name="spotwatch-mailbox", daemon=True).start()
        except RuntimeError as error:
            self._busy.discard(key)
            raise Unavailable(f"{where}: {error}; raise the limit of tasks (TasksMax=, ulimit -u)") from error
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await future
        except TimeoutError as error:
            raise _Silent(f"{where}: no answer within {_ANSWER_SECONDS:g} s") from error


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
    status, code = status_of(error.__cause__), code_of(error.__cause__)
    if code == "NoSuchBucket":
        return Malformed(str(error), mend="make the bucket, or correct its name in `mailbox`")
    if not status:
        # By name: boto3 is not imported before it is used.
        if type(error.__cause__).__name__ in _LACKING:
            return Denied(str(error), mend=_MEND_LACKING)
        return Unavailable(str(error), mend=_MEND_AWAY)
    known = refusal(key, status)
    return type(known)(str(error), mend=known.mend)
