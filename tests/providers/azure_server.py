# SPDX-License-Identifier: Apache-2.0
"""A small Azure metadata service with faults, and a provider that asks it, for tests.

It serves Scheduled Events and the name of the machine; it is not the emulator that people use.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from spotwatch.model import Answer
from spotwatch.providers.azure import Azure, Config
from spotwatch.testing import FakeClock
from tests.quiet import context, serving

SIGNAL = "scheduled-events"
PAYLOADS = Path(__file__).parents[1] / "payloads" / "azure"
Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]


def payload(name: str) -> dict[str, Any]:
    """Return a recorded document without the note of its source."""
    document: dict[str, Any] = json.loads((PAYLOADS / name).read_text(encoding="utf-8"))
    del document["_source"]
    return document


def event(**changes: Any) -> dict[str, Any]:
    """Return the recorded Preempt with changes; a change to `...` leaves the field out."""
    recorded = payload("preempt-scheduled.json")["Events"][0] | changes
    return {name: value for name, value in recorded.items() if value is not ...}


class Server:
    """The instance metadata service as far as it is needed."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.events: list[Any] = []
        self.versions = {"2020-07-01", "2024-07-09"}
        self.unknown_version_status = 404
        self.compute = payload("compute.json")
        self.events_fault: Fault | None = None
        self.compute_fault: Fault | None = None
        self.asked: list[tuple[str, str, str]] = []
        """Method, path and api-version of each request."""
        self.approved: list[Any] = []

    async def handle_events(self, request: web.Request) -> web.StreamResponse:
        """Answer GET and POST of Scheduled Events."""
        version = self._note(request)
        if request.headers.get("Metadata") != "true":
            return web.Response(status=400)
        if self.events_fault is not None:
            return await self.events_fault(request)
        if version not in self.versions:
            return web.Response(status=self.unknown_version_status)
        if request.method == "POST":
            self.approved.append(await request.json())
            return web.Response()
        return web.json_response({"DocumentIncarnation": 1, "Events": self.events})

    async def handle_compute(self, request: web.Request) -> web.StreamResponse:
        """Answer who the machine is."""
        self._note(request)
        if request.headers.get("Metadata") != "true":
            return web.Response(status=400)
        if self.compute_fault is not None:
            return await self.compute_fault(request)
        return web.json_response(self.compute)

    def _note(self, request: web.Request) -> str:
        version = request.query["api-version"]
        self.asked.append((request.method, request.path, version))
        return version

    def versions_asked(self) -> list[str]:
        """Return the api-versions of the requests for events."""
        return [version for _, path, version in self.asked if path.endswith("scheduledevents")]


@asynccontextmanager
async def watched(**settings: Any) -> AsyncIterator[tuple[Server, Azure]]:
    """Yield a server and a provider that asks it."""
    server = Server()
    app = web.Application()
    app.router.add_route("*", "/metadata/scheduledevents", server.handle_events)
    app.router.add_get("/metadata/instance/compute", server.handle_compute)
    async with (
        serving(app) as url,
        Azure(Config(endpoint=url, **settings), context(server.clock)) as provider,
    ):
        yield server, provider


async def polled(provider: Azure, until: Callable[[Answer], bool], limit_seconds: float = 600.0) -> Answer:
    """Ask and wait as the watcher does, until an answer fits; in quiet time the limit costs nothing."""
    async with asyncio.timeout(limit_seconds):
        while True:
            answer = await provider.notices()
            if until(answer):
                return answer
            await provider.wait()


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


async def hang(_request: web.Request) -> web.StreamResponse:
    """Take the request and never answer."""
    await asyncio.sleep(3600)
    return web.Response()
