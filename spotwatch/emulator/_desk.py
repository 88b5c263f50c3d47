# SPDX-License-Identifier: Apache-2.0
"""From a request to what leaves: it is kept, faults are asked, the cloud answers at once or later.

It does not know what a page says, nor how a fault looks on the wire.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from aiohttp import web

from spotwatch.clock import Clock
from spotwatch.emulator import _wire
from spotwatch.emulator._base import Asked, Cloud, Hold, Reply
from spotwatch.emulator.faults import NEEDS_ANSWER, Fault, Faults, Mood, mood, spoiler

_MAX_RECORDS = 100_000
_SLOW_BYTE_SECONDS = 1.0


@dataclass(slots=True, kw_only=True)
class Request:
    """One request that came in."""

    at: datetime
    method: str
    path: str
    """With its query, as sent."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes = b""
    page: str
    """The cloud's page, as faults name it; empty for a path it does not know."""
    status: int = 0
    """0: no answer has left (yet)."""
    fault: str = ""
    """The fault that spoilt the answer."""


class Desk:
    """Answers the requests of one emulator.

    Args:
        cloud: whose pages.
        clock: dates records and answers.
        faults: those in force, shared with whoever sets them.
        tell: called with the name and the facts of what happened.
    """

    def __init__(
        self, cloud: Cloud, clock: Clock, faults: Faults, tell: Callable[[str, Mapping[str, Any]], None]
    ) -> None:
        self._cloud = cloud
        self._clock = clock
        self._faults = faults
        self._tell = tell
        self.base_url = ""
        """Where redirects point to, known once the port is."""
        self.records: deque[Request] = deque(maxlen=_MAX_RECORDS)
        self._changed = asyncio.Event()

    def change(self) -> None:
        """Wake every request that waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = Asked(
            method=request.method,
            path=request.rel_url.path,
            query=dict(request.rel_url.query),
            headers={k.lower(): v for k, v in request.headers.items()},
            body=await request.read(),
        )
        record = Request(
            at=self._clock.now(),
            method=asked.method,
            path=request.path_qs,
            headers=asked.headers,
            body=asked.body,
            page=self._cloud.page_of(asked.path),
        )
        self.records.append(record)
        try:
            return await self._answer(request, asked, record)
        finally:
            data = {"method": record.method, "path": record.path, "status": record.status}
            self._tell("request", {**data, "fault": record.fault} if record.fault else data)

    async def _answer(self, request: web.BaseRequest, asked: Asked, record: Request) -> web.StreamResponse:
        """Return the answer, or what a fault makes of it."""
        page = record.page
        hold: Hold | None = None
        ends: float | None = None
        while True:
            active = self._faults.active(page, tells=self._cloud.tells(page))
            if record.fault == "hang":  # it has been late enough
                active = [f for f in active if f.name != "hang"]
            fault = spoiler(active)
            if fault is not None and fault.name not in NEEDS_ANSWER:
                record.fault = fault.name
                if fault.name != "hang" or fault.seconds is None:
                    self._faults.spend(active, page)
                    return await self._spoil(request, fault, record)
                self._faults.spend([fault], page)
                await asyncio.sleep(fault.seconds)
                continue
            told = mood(active, page)
            answer = self._page(asked, told, hold)
            if isinstance(answer, Reply):
                self._faults.spend(active, page)
                break
            if hold is None and answer.seconds is not None:
                ends = asyncio.get_running_loop().time() + answer.seconds
            hold = await self._held(answer, ends)
        record.status = int(answer.status)
        if fault is None:
            return _wire.whole(
                answer, now=self._clock.now(), skew_seconds=told.skew_seconds, closes=self._cloud.closes
            )
        record.fault = fault.name
        byte_seconds = _SLOW_BYTE_SECONDS if fault.name == "slow-body" else None
        return await _wire.send_partly(request, answer, now=self._clock.now(), byte_seconds=byte_seconds)

    def _page(self, asked: Asked, told: Mood, hold: Hold | None) -> Reply | Hold:
        if asked.path == _wire.CAPTIVE_PATH:
            return _wire.captive_page()
        return self._cloud.answer(asked, told, hold)

    async def _held(self, hold: Hold, ends: float | None) -> Hold:
        """Return `hold` after a change, or expired after its time."""
        try:
            async with asyncio.timeout_at(ends):
                await self._changed.wait()
        except TimeoutError:
            return replace(hold, expired=True)
        return hold

    async def _spoil(self, request: web.BaseRequest, fault: Fault, record: Request) -> web.StreamResponse:
        if fault.name in ("refuse", "reset"):
            _wire.drop(request, reset=fault.name == "reset")
            return web.Response()
        reply = _wire.spoilt(fault, self._cloud, self.base_url)
        if reply is None:
            # A hang ends when the client leaves, or the emulator: both cancel this.
            never: asyncio.Future[web.StreamResponse] = asyncio.get_running_loop().create_future()
            return await never
        record.status = int(reply.status)
        return _wire.whole(reply, now=self._clock.now(), skew_seconds=0.0, closes=self._cloud.closes)
