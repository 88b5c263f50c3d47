# SPDX-License-Identifier: Apache-2.0
"""A provider of pushed notices in use, a Droplet's metadata service on loopback, and the sender of messages.

It holds no test; the fixtures are in `conftest`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from aiohttp import web

from spotwatch.model import Answer, Notice, to_rfc3339
from spotwatch.providers import Context, Received, Verdict
from spotwatch.providers.digitalocean import Config, DigitalOcean
from spotwatch.testing import FakeClock
from spotwatch.webhooks import signed_headers

SECRET = bytes(range(32))
OURS = 512345678
MILLISECOND = timedelta(milliseconds=1)
"""Moments are kept to that."""
KEYS = {
    "id": str(OURS),
    "hostname": "spot-trainer-01",
    "region": "atl1",
    "tags/": "spot\ntraining",
    "interfaces/public/0/ipv4/address": "203.0.113.7",
    "interfaces/private/0/ipv4/address": "10.132.0.7",
    "interfaces/public/0/ipv6/address": "2001:db8::7",
}


@dataclass(slots=True)
class Metadata:
    """A Droplet's metadata service, with what was asked of it."""

    keys: dict[str, str | bytes] = field(default_factory=lambda: dict(KEYS))
    status: int = 200
    location: str = ""
    asked: list[str] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    endpoint: str = ""

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one key; wait first when told to."""
        self.asked.append(request.path)
        await self.open.wait()
        key = request.path.removeprefix("/metadata/v1/")
        if self.location:
            raise web.HTTPFound(self.location)
        if self.status != 200:
            return web.Response(status=self.status)
        if key not in self.keys:
            return web.Response(status=404)
        value = self.keys[key]
        return web.Response(body=value if isinstance(value, bytes) else value.encode())


@dataclass(slots=True)
class Desk:
    """A provider in use, and the sender of its messages."""

    provider: DigitalOcean
    clock: FakeClock
    sent: int = 0

    async def push(
        self, body: bytes | dict[str, Any], *, webhook_id: str = "", signed: datetime | None = None
    ) -> Verdict:
        """Send a signed message."""
        self.sent += 1
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        stamp = int((signed or self.clock.now()).timestamp())
        made = signed_headers(SECRET, webhook_id or f"msg_{self.sent}", stamp, raw)
        return await self.provider.receive(Received(headers=made, body=raw))

    async def reclaim(self, minutes: float | None = None, **subject: Any) -> Verdict:
        """Send a reclaim for `minutes` from now; of this Droplet unless told otherwise."""
        row: dict[str, Any] = {"event": "reclaim", **(subject or {"droplet_id": OURS})}
        if minutes is not None:
            row["at"] = to_rfc3339(self.clock.now() + timedelta(minutes=minutes))
        return await self.push(row)

    async def cancel(self, **subject: Any) -> Verdict:
        """Send a cancel."""
        return await self.push({"event": "cancel", **(subject or {"droplet_id": OURS})})

    async def ask(self) -> Answer:
        """Poll."""
        return await self.provider.notices()

    async def only(self) -> Notice:
        """Poll, and return the one notice."""
        [notice] = (await self.ask()).notices
        return notice

    def skip(self, **time: float) -> None:
        """Let the wall clock move on."""
        self.clock.wall_offset_seconds += timedelta(**time).total_seconds()


@dataclass(slots=True)
class Shop:
    """Makes desks, each a life of the daemon on the same state directory."""

    metadata: Metadata
    tmp_path: Path
    clock: FakeClock = field(default_factory=FakeClock)

    def open(self, *, secrets: tuple[bytes, ...] = (SECRET,), kept: bool = True, **config: Any) -> Desk:
        """Return a provider that is not entered yet."""
        context = Context(
            clock=self.clock,
            runtime_dir=self.tmp_path,
            state_dir=self.tmp_path if kept else None,
            webhook_secrets=secrets,
        )
        return Desk(DigitalOcean(Config(endpoint=self.metadata.endpoint, **config), context), self.clock)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition with a time limit."""
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110 - what is awaited has no event of its own
            await asyncio.sleep(0.01)
