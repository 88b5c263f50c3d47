# SPDX-License-Identifier: Apache-2.0
"""An S3 bucket's large bodies through obstore, outside the interpreter lock.

Endpoint, addressing, region and credentials are boto3's, so that both mean the same bucket. What only boto3
can do is left to it: a bucket of another region than the client's, keys that obstore would write differently,
ranges that come with status 200, work in a process that was forked.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from spotwatch.errors import StoreError
from spotwatch.train.parts import Body
from spotwatch.train.store import OnPart
from spotwatch.train.stores import object_moves
from spotwatch.train.stores.acked import Acked
from spotwatch.train.stores.bulk_address import Address, address_of
from spotwatch.train.stores.pacing import Pace
from spotwatch.train.stores.s3_bucket import Bucket

log = logging.getLogger("spotwatch.train")

# What is read comes in ranges; a store that says nothing is given up after it.
_REQUEST_SECONDS = 180
RETRIES = 8
_ASK_AGAIN_AFTER = timedelta(minutes=8)
# rclone sends a range, and says so, with status 200; obstore takes nothing but 206.
_WHOLE = "non-partial response"
_ELSEWHERE = ("without LOCATION", "PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed")


@dataclass(frozen=True, slots=True)
class _Opened:
    """One bucket for both ways: what is slow is no error when a part is sent."""

    reads: Any
    sends: Any
    acked: Acked


class ObstoreBulk:
    """Moves what has more than one part.

    Args:
        bucket: whose client tells where and who.
        pace: of all uploads of this process.
        retries: of each request, over some 20 seconds.
    """

    def __init__(self, bucket: Bucket, pace: Pace, *, retries: int = RETRIES) -> None:
        self._bucket = bucket
        self._pace = pace
        self._retries = retries
        self._lock = threading.Lock()
        self._store: _Opened | None = None
        self._is_unfit = False
        self._reads_ranges = True

    def prepare(self, size_bytes: int) -> None:
        """Do nothing: obstore is there within milliseconds."""

    def close(self) -> None:
        """Let the connections go; obstore's two threads serve the whole process, and stay."""
        with self._lock:
            self._store = None

    def upload(self, key: str, body: Body, on_part: OnPart) -> tuple[str, ...] | None:
        """Store `body` in parts."""
        if body.size_bytes <= body.part_bytes:
            return None
        store = self._usable(key)
        if store is None:
            return None
        try:
            place = self._bucket.url(key)
            return object_moves.send(store.sends, key, body, on_part, self._pace, place, store.acked)
        except StoreError as error:
            if self._is_elsewhere(error.__cause__):
                return None
            raise

    def read_into(self, key: str, begin: int, target: memoryview) -> bool:
        """Fill `target` by a Range request."""
        store = self._usable(key) if self._reads_ranges else None
        if store is None:
            return False
        try:
            object_moves.read_into(store.reads, key, begin, target, self._bucket.url(key))
        except StoreError as error:
            if _WHOLE in str(error.__cause__):
                self._reads_ranges = False
            elif not self._is_elsewhere(error.__cause__):
                raise
            return False
        return True

    def _usable(self, key: str) -> _Opened | None:
        # obstore takes no empty, "." or ".." segment, nor control characters; they are legal in S3.
        if any(part in ("", ".", "..") for part in key.split("/")) or not key.isprintable():
            return None
        if not object_moves.is_usable():
            return None
        with self._lock:
            if self._store is None and not self._is_unfit:
                self._store = self._opened()
                self._is_unfit = self._store is None
            return None if self._is_unfit else self._store

    def _is_elsewhere(self, error: BaseException | None) -> bool:
        if not any(sign in str(error) for sign in _ELSEWHERE):
            return False
        log.info("%s is in another region than configured; boto3 alone moves bodies", self._bucket.url(""))
        self._is_unfit = True
        return True

    def _opened(self) -> _Opened | None:
        address = address_of(self._bucket)
        if address is None:
            return None
        acked = Acked()
        reads, sends = (
            self._made(address, seconds) for seconds in (_REQUEST_SECONDS, object_moves.PART_SECONDS)
        )
        return _Opened(reads, sends, acked)

    def _made(self, address: Address, request_seconds: float) -> Any:
        from obstore.store import S3Store  # noqa: PLC0415 - an extra

        is_http = address.endpoint.startswith("http:")
        return S3Store(
            self._bucket.name,
            config={
                "endpoint": address.endpoint,
                # Else AWS_ENDPOINT_URL_S3 would take precedence, also over the endpoint of Spaces.
                "aws_endpoint_url_s3": address.endpoint,
                "virtual_hosted_style_request": address.is_virtual,
                "region": address.region,
                # As boto3 does it: TLS protects what it carries, and a digest costs as much CPU as all else.
                "unsigned_payload": not is_http,
                "skip_signature": False,
                # One request an object: the call for many wants a checksum that some stores do not know.
                "disable_bulk_delete": True,
            },
            client_options={
                "connect_timeout": timedelta(seconds=5),
                "timeout": timedelta(seconds=request_seconds),
                "allow_http": is_http,
                **({"root_certificate": address.ca_bundle} if address.ca_bundle else {}),
            },
            retry_config={
                "max_retries": self._retries,
                "backoff": {
                    "init_backoff": timedelta(seconds=0.2),
                    "max_backoff": timedelta(seconds=5),
                    "base": 2,
                },
                "retry_timeout": timedelta(seconds=request_seconds),
            },
            credential_provider=_Credentials(self._bucket),
        )


class _Credentials:
    """What boto3 has found for the bucket, and renews: given to obstore whenever it asks.

    Args:
        bucket: whose options may name credentials.
    """

    def __init__(self, bucket: Bucket) -> None:
        import boto3  # noqa: PLC0415 - half a second, and only trainers that save to S3 pay it

        names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
        given = {name: bucket.options[name] for name in names if name in bucket.options}
        self._found = boto3.session.Session(**given).get_credentials()

    def __call__(self) -> Any:
        frozen = self._found.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            # obstore asks again five minutes before. boto3 renews temporary ones ten minutes before they end.
            "expires_at": datetime.now(UTC) + _ASK_AGAIN_AFTER,
        }
