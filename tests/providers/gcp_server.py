# SPDX-License-Identifier: Apache-2.0
"""A small Google metadata server with faults by key, and a provider that asks it, for tests.

It serves three keys and the instance id; it is not the emulator that people use.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from spotwatch.model import Answer
from spotwatch.providers.gcp import Config, Gcp
from spotwatch.testing import FakeClock
from tests.quiet import context, serving

ALL = {"preempted", "maintenance-event", "upcoming-maintenance"}
Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Google's metadata server as far as it is needed, with faults by key."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.values = {"preempted": "FALSE", "maintenance-event": "NONE", "upcoming-maintenance": "{ }"}
        self.faults: dict[str, Fault] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.hanging = 0
        self.headers = {"Metadata-Flavor": "Google"}
        self.has_etags = True
        self._changed = asyncio.Condition()

    async def set(self, signal: str, value: str) -> None:
        """Change a value and wake who hangs on it."""
        async with self._changed:
            self.values[signal] = value
            self._changed.notify_all()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one GET below `instance/`."""
        signal = request.match_info["key"]
        self.asked.append((signal, dict(request.query)))
        if request.headers.get("Metadata-Flavor") != "Google":
            return web.Response(status=403)
        if signal in self.faults:
            return await self.faults[signal](request)
        if signal == "id":
            return web.Response(text="4520031799277581759\n", headers=self.headers)
        if request.query.get("wait_for_change") == "true":
            await self._hang(signal, request.query)
        etag = {"ETag": self.etag(signal)} if self.has_etags else {}
        return web.Response(text=self.values[signal], headers=self.headers | etag)

    def etag(self, signal: str) -> str:
        """Return a text that differs with the value."""
        return f"{hash((signal, self.values[signal])) & 0xFFFF:x}"

    async def _hang(self, signal: str, query: Any) -> None:
        limit = float(query["timeout_sec"])
        self.hanging += 1
        try:
            async with asyncio.timeout(limit), self._changed:
                await self._changed.wait_for(lambda: self.etag(signal) != query["last_etag"])
        except TimeoutError:
            pass
        finally:
            self.hanging -= 1

    def plain(self, signal: str) -> int:
        """Return how many plain GETs there were."""
        return sum(1 for key, query in self.asked if key == signal and "wait_for_change" not in query)

    def hung(self, signal: str) -> list[dict[str, str]]:
        """Return the queries of hanging GETs."""
        return [query for key, query in self.asked if key == signal and "wait_for_change" in query]


@asynccontextmanager
async def watched(**settings: Any) -> AsyncIterator[tuple[Server, Gcp]]:
    """Yield a server and a provider that asks it."""
    server = Server()
    app = web.Application()
    app.router.add_get("/computeMetadata/v1/instance/{key}", server.handle)
    async with serving(app) as url, Gcp(Config(endpoint=url, **settings), context(server.clock)) as provider:
        yield server, provider


async def polled(provider: Gcp, until: Callable[[Answer], bool], limit_seconds: float = 600.0) -> Answer:
    """Wait and ask as the watcher does, until an answer fits; in quiet time the limit costs nothing."""
    async with asyncio.timeout(limit_seconds):
        while True:
            await provider.wait()
            answer = await provider.notices()
            if until(answer):
                return answer


async def hanging(server: Server, provider: Gcp) -> None:
    """Poll until all keys hang."""
    await polled(provider, lambda _: server.hanging == len(ALL))


def replying(status: int, text: str = "", **headers: str) -> Fault:
    """Return a fault: one fixed answer."""

    async def reply(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text, headers=headers)

    return reply


async def reset(request: web.Request) -> web.StreamResponse:
    """Cut the connection before a byte is answered."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def half_open(_request: web.Request) -> web.StreamResponse:
    """Take the request and never answer."""
    await asyncio.sleep(3600)
    return web.Response()


def raised(answer: Answer) -> set[str]:
    """Return the signals that say something."""
    return {notice.signal for notice in answer.notices}
