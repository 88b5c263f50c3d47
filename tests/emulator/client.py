# SPDX-License-Identifier: Apache-2.0
"""A raw client for the emulator's tests, and a clock that is set by hand.

It uses nothing of spotwatch but the emulator's address.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import aiohttp

from spotwatch.clock import Clock
from spotwatch.emulator import Emulator
from spotwatch.testing import EPOCH

TTL = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN = "X-aws-ec2-metadata-token"
GOOGLE = {"Metadata-Flavor": "Google"}
AZURE = {"Metadata": "true"}
V1 = "/computeMetadata/v1/instance"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"

ACTION = "/latest/meta-data/spot/instance-action"
PAGES: Mapping[str, tuple[str, str]] = {
    "aws": (ACTION, "instance-action"),
    "gcp": (f"{V1}/preempted", "preempted"),
    "azure": (EVENTS, "scheduled-events"),
    "digitalocean": ("/metadata/v1/id", "identity"),
}
IDENTITY = {
    "aws": "/latest/meta-data/instance-id",
    "gcp": f"{V1}/id",
    "azure": "/metadata/instance/compute?api-version=2021-02-01",
    "digitalocean": "/metadata/v1/region",
}


@dataclass(frozen=True)
class Got:
    """One complete answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """Return the body as text."""
        return self.body.decode()


async def ask(
    cloud: Emulator,
    path: str,
    headers: Mapping[str, str] | None = None,
    *,
    method: str = "GET",
    data: bytes | None = None,
    limit_seconds: float = 5.0,
) -> Got:
    """Send one request on a connection of its own."""
    timeout = aiohttp.ClientTimeout(total=limit_seconds)
    async with (
        aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session,
        session.request(
            method, cloud.base_url + path, headers=headers, data=data, allow_redirects=False
        ) as response,
    ):
        names = {k.lower(): v for k, v in response.headers.items()}
        return Got(response.status, names, await response.read())


async def token(cloud: Emulator, ttl_seconds: int = 60) -> dict[str, str]:
    """Return the header that an AWS request needs."""
    got = await ask(cloud, "/latest/api/token", {TTL: str(ttl_seconds)}, method="PUT")
    assert got.status == 200
    return {TOKEN: got.text}


async def headers_for(cloud: Emulator) -> dict[str, str]:
    """Return what a proper client sends."""
    if cloud.name == "aws":
        return await token(cloud)
    return {"gcp": GOOGLE, "azure": AZURE, "digitalocean": {}}[cloud.name]


async def until(is_so: Callable[[], Any], limit_seconds: float = 5.0) -> None:
    """Return as soon as `is_so` is true; fail when it never is."""
    end = time.monotonic() + limit_seconds
    while not is_so():
        assert time.monotonic() < end, "it never came true"
        await asyncio.sleep(0.005)


class HandClock(Clock):
    """A clock that stands still until it is moved."""

    boot_id = "boot-1"

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        """Return the moment set."""
        return EPOCH + timedelta(seconds=self.seconds)

    def boot(self) -> float:
        """Return the seconds set."""
        return self.seconds

    def monotonic(self) -> float:
        """Return the seconds set."""
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        """Move by `seconds`."""
        self.seconds += seconds
