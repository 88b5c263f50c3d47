# SPDX-License-Identifier: Apache-2.0
"""A client that sends what no client library would, and a receiver that is played."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from spotwatch.providers import Received, Verdict
from spotwatch.rate_limits import TokenBuckets
from spotwatch.webhook_guard import Limits

FAST = Limits(
    header_seconds=1.0, body_seconds=1.0, request_seconds=5.0, keepalive_seconds=1.0, lingering_seconds=0.1
)


ROOMY = TokenBuckets(peer_rate=1e6, peer_burst=1e6, total_rate=1e6, total_burst=1e6)


@dataclass(slots=True)
class Reply:
    """One parsed answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class PlayedReceiver:
    """Keep what came and answer as told."""

    verdict: Verdict = field(default_factory=lambda: Verdict(status=202, result="accepted"))
    error: Exception | None = None
    got: list[Received] = field(default_factory=list)

    async def receive(self, request: Received) -> Verdict:
        """Keep the request."""
        self.got.append(request)
        if self.error is not None:
            raise self.error
        return self.verdict


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    """Read one answer with a Content-Length."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    status, *lines = head.decode().split("\r\n")
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines) if k}
    body = await asyncio.wait_for(reader.readexactly(int(headers.get("content-length", "0"))), 5)
    return Reply(int(status.split()[1]), headers, body)


async def ask(port: int, raw: bytes) -> Reply:
    """Send bytes on a connection of their own and return the first answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw)
        return await read_reply(reader)
    finally:
        writer.close()
        await writer.wait_closed()


def get(path: str, **headers: str) -> bytes:
    """Return a GET as bytes."""
    lines = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in {"Host": "127.0.0.1", **headers}.items())
    return f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode()


def post(path: str, body: bytes, extra: str = "") -> bytes:
    """Return a POST as bytes; `extra` holds whole header lines."""
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body


async def until(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    """Wait for a condition with a time limit."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the condition is about sockets, which have no event
            await asyncio.sleep(0.01)
