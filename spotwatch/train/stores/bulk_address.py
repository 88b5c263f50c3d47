# SPDX-License-Identifier: Apache-2.0
"""Where and how boto3 would reach a bucket, for a client that cannot know: endpoint, addressing, region, CA.

It sends nothing: boto3 makes up a request, and its own event tells it before it is sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from spotwatch.train.stores.s3_bucket import Bucket

_KEY = "key"
_REGION = re.compile(r"AWS4-HMAC-SHA256 Credential=[^/]+/\d+/([^/]+)/s3/")
# S3 Express signs with the token of a session, which is asked for over the network.
_EXPRESS = "--x-s3"


@dataclass(frozen=True, slots=True)
class Address:
    """How a bucket is reached.

    Args:
        endpoint: the URL before the key, or before the bucket where that is part of the path.
        is_virtual: the bucket is part of `endpoint`.
        region: that requests are signed for.
        ca_bundle: of certificates to be trusted; None: the system's.
    """

    endpoint: str
    is_virtual: bool
    region: str
    ca_bundle: bytes | None


def address_of(bucket: Bucket) -> Address | None:
    """Return how boto3 reaches `bucket`; None: in a way that only boto3 knows, or without credentials."""
    import boto3  # noqa: PLC0415 - half a second, and only trainers that save to S3 pay it
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - as above

    if bucket.name.endswith(_EXPRESS):
        return None
    try:
        client = boto3.session.Session().client("s3", **bucket.options)
        seen = _request(client, bucket.name)
    except BotoCoreError:
        # Whoever asks the bucket itself is told better.
        return None
    signed = _REGION.match(_text(seen.headers.get("Authorization", "")))
    tail = f"/{_KEY}"
    if signed is None or not seen.url.endswith(tail):
        return None
    before = seen.url.removesuffix(tail)
    in_path = f"/{quote(bucket.name)}"
    is_virtual = not urlsplit(before).path.endswith(in_path)
    endpoint = before if is_virtual else before.removesuffix(in_path)
    return Address(endpoint, is_virtual, signed.group(1), _ca_bundle())


def _request(client: Any, bucket: str) -> Any:
    from botocore.awsrequest import AWSResponse  # noqa: PLC0415 - as above

    seen: list[Any] = []

    def answer(request: Any, **_: Any) -> Any:
        seen.append(request)
        return AWSResponse(request.url, 200, {}, _Nothing())

    client.meta.events.register("before-send.s3.HeadObject", answer)
    client.head_object(Bucket=bucket, Key=_KEY)
    return seen[0]


class _Nothing:
    """The body of an answer to HEAD."""

    def stream(self, **_: Any) -> Iterator[bytes]:
        return iter(())


def _ca_bundle() -> bytes | None:
    from botocore.session import get_session  # noqa: PLC0415 - as above

    # AWS_CA_BUNDLE or the profile's.
    path = get_session().get_config_variable("ca_bundle")
    return Path(path).read_bytes() if path else None


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
