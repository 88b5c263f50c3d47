# SPDX-License-Identifier: Apache-2.0
"""One S3 bucket through boto3: how its client is made, when to ask it again, and its errors in our words.

It knows nothing of stores. Never botocore's CRT mode: that does not honour an endpoint. botocore's retries
are off: they draw from Python's global random state, which is the trainer's, and part of its checkpoint.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from spotwatch.errors import ConfigError, StoreError, StoreMissing
from spotwatch.train import attendance
from spotwatch.train.stores.acked import Acked

TRIES = 6
_PAUSE_SECONDS = 0.25
_AWS = (".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu")
_MISSING = frozenset({"NoSuchKey", "404", "NotFound"})
# Those that want another try though their status does not say so (docs.aws.amazon.com, S3 "Error responses",
# 2026-11-29).
_PASSING = frozenset({"RequestTimeout", "OperationAborted", "ConditionalRequestConflict", "Throttling"})
_PASSING_STATUSES = frozenset({429, 500, 502, 503, 504})

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Times:
    """How long boto3 waits for the store."""

    send_seconds: float
    """To connect; and, on a connection that is new, for the kernel to take the next few bytes of a body.

    A full buffer of the kernel's takes no more until a third of it is through.
    """
    answer_seconds: float
    """For the answer, once the last byte is in the kernel's buffer."""


_SENDING = Times(180, 180)


class Bucket:
    """One bucket; threads may use it at once.

    Args:
        name: the bucket must exist.
        options: for boto3's client: endpoint, region, credentials.
        scheme: how the URL shown to people begins.
        tries: of each request.
        times: how long boto3 waits for the store; None: as for small requests.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        *,
        scheme: str = "s3",
        tries: int = TRIES,
        times: Times | None = None,
    ) -> None:
        self.name = name
        self.options = dict(options)
        self._scheme = scheme
        self._tries = tries
        self._times = times or Times(5, 60)
        self._sender: Bucket | None = None
        self._random = random.SystemRandom()
        self._lock = threading.Lock()
        self._client: Any = None
        self._acked: Acked | None = None

    def url(self, key: str) -> str:
        """Return what people are shown for an object."""
        return f"{self._scheme}://{self.name}/{key}"

    def at(self, key: str) -> dict[str, str]:
        """Return the object as boto3's methods want it."""
        return {"Bucket": self.name, "Key": key}

    @property
    def client(self) -> Any:
        """Return boto3's client, made when first asked for.

        Raises:
            ConfigError: boto3 cannot use the endpoint.
        """
        import boto3  # noqa: PLC0415 - half a second, and only trainers that save to S3 pay it
        from botocore.config import Config  # noqa: PLC0415 - as above

        with self._lock:
            if self._client is None:
                config = Config(
                    connect_timeout=self._times.send_seconds,
                    read_timeout=self._times.answer_seconds,
                    retries={"mode": "standard", "total_max_attempts": 1},
                    max_pool_connections=32,
                    # Other stores than AWS refuse the newer checksum trailers; AWS is given ours.
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                )
                # Before its first connection.
                self._acked = self._acked or Acked()
                try:
                    self._client = boto3.session.Session().client("s3", config=config, **self.options)
                except ValueError as error:
                    raise ConfigError(f"{self.url('')}: {error}; check the endpoint's URL") from error
                attendance.moved()  # until here it was boto3 that took its time
            return self._client

    @property
    def acked(self) -> Acked:
        """Return what was acknowledged on the connections of the client."""
        _ = self.client
        assert self._acked is not None  # noqa: S101 - made with the client
        return self._acked

    @property
    def sender(self) -> Bucket:
        """Return the same bucket with connections of its own, and time for a part on a slow link."""
        with self._lock:
            if self._sender is None:
                self._sender = Bucket(
                    self.name, self.options, scheme=self._scheme, tries=self._tries, times=_SENDING
                )
            return self._sender

    def close(self) -> None:
        """Close the connections; the next request makes new ones."""
        with self._lock:
            client, self._client, self._acked = self._client, None, None
            sender, self._sender = self._sender, None
        if client is not None:
            client.close()
        if sender is not None:
            sender.close()

    @property
    def is_aws(self) -> bool:
        """Tell whether it is Amazon's own, wherever the endpoint was configured."""
        host = urlsplit(self.client.meta.endpoint_url).hostname or ""
        return host.endswith(_AWS)

    def ask(
        self, deed: str, key: str, call: Callable[[Any], T], *, ended: threading.Event | None = None
    ) -> T:
        """Return what `call` makes of the client; ask again, with growing pauses, what may succeed later.

        Args:
            deed: for the error: "read", "write".
            key: of the object, for the error.
            call: one request with all that belongs to it; it may be called several times.
            ended: set by someone who no longer wants an answer.

        Raises:
            StoreMissing: there is no such object.
            StoreError: anything else that the bucket, the network or boto3 says.
        """
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - as above
        from urllib3.exceptions import HTTPError  # noqa: PLC0415 - boto3 brings it

        ended = ended or threading.Event()
        tried = 0
        while True:
            attendance.expect_wanted()
            try:
                answer = call(self.client)
            except (ClientError, BotoCoreError, HTTPError, OSError) as error:
                tried += 1
                if tried >= self._tries or not _may_pass(error) or ended.wait(self._pause_seconds(tried)):
                    raise self._in_words(deed, key, error) from error
            else:
                attendance.moved()
                return answer

    def size_bytes(self, key: str) -> int:
        """Return the size of an object; raise `StoreMissing` without one."""
        try:
            return int(self.ask("read", key, lambda s3: s3.head_object(**self.at(key)))["ContentLength"])
        except StoreError:
            # An answer to HEAD has no body: no bucket looks like no object, and nothing says why.
            self.ask("read", key, lambda s3: s3.get_object(**self.at(key), Range="bytes=0-0")["Body"].close())
            raise

    def _pause_seconds(self, tried: int) -> float:
        longest = _PAUSE_SECONDS * 2.0 ** (tried - 1)
        return longest * self._random.uniform(0.5, 1.0)

    def _in_words(self, deed: str, key: str, error: Exception) -> StoreError:
        text = f"cannot {deed} {self.url(key)}: "
        code = code_of(error)
        if not code:
            return StoreError(text + str(error))
        text += f"{code} {_told(error, 'Error').get('Message', '')}".rstrip()
        if code in _MISSING:
            return StoreMissing(text)
        if status_of(error) == HTTP_DENIED:
            text += "; check the credentials, the bucket's policy and the clock"
        return StoreError(text)


HTTP_DENIED = 403


def code_of(error: BaseException | None) -> str:
    """Return the code with which the store refused, as `NoSuchKey`; empty when it did not answer."""
    return str(_told(error, "Error").get("Code", ""))


def status_of(error: BaseException | None) -> int:
    """Return the HTTP status with which the store refused; 0 when it did not answer."""
    return int(_told(error, "ResponseMetadata").get("HTTPStatusCode", 0))


def _told(error: BaseException | None, what: str) -> Mapping[str, Any]:
    # Errors of the connection have a response too: None.
    response: Mapping[str, Any] = getattr(error, "response", None) or {}
    told: Mapping[str, Any] = response.get(what, {})
    return told


def _may_pass(error: Exception) -> bool:
    from botocore import exceptions as told  # noqa: PLC0415 - as above

    if isinstance(error, told.ClientError):
        return status_of(error) in _PASSING_STATUSES or code_of(error) in _PASSING
    lasting = isinstance(error, told.BotoCoreError) and not isinstance(
        error, (told.HTTPClientError, told.ConnectionError, told.IncompleteReadError)
    )
    return not lasting
