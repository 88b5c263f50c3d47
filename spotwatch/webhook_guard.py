# SPDX-License-Identifier: Apache-2.0
"""What a peer may cost us: a listener whose connections, header time, body time, size and rate are limited.

aiohttp's server has no time limit for headers or bodies, keeps idle connections for an hour, unpacks
compressed bodies and logs a traceback for each malformed request. This is one connection class that does
none of that, and two helpers for the handler. It does not know any path, secret or provider.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

from aiohttp import hdrs
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response, StreamResponse
from aiohttp.web_server import Server as AiohttpServer

# Instead of the versions of Python and aiohttp, which help only an attacker.
_SERVER = "spotwatch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one listener grants its peers."""

    connections: int = 32
    header_seconds: float = 3.0
    """From the connection to the end of the first request's headers; then it is cut off."""
    body_seconds: float = 3.0
    request_seconds: float = 10.0
    """A whole request with its answer, whatever the peer reads or does not read."""
    keepalive_seconds: float = 5.0
    lingering_seconds: float = 1.0
    """How long the rest of a refused body is read away, so that the peer sees the refusal."""
    body_bytes: int = 262144


class BodyTooLarge(Exception):
    """The body is longer than the limit; the rest was not read."""


class BodyBroken(Exception):
    """The peer left, or sent no valid body."""


def is_loopback(peer: str) -> bool:
    """Tell whether `peer` is an address of this machine's loopback, IPv4 mapped into IPv6 included."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def peer_of(request: BaseRequest, trusted_proxies: Collection[str]) -> str:
    """Return the address that a request comes from.

    Args:
        request: with a header of any content.
        trusted_proxies: peers that are asked whom they speak for. What they added last counts: the entries
            before it came with the request, and may be anybody's invention.
    """
    peer = request.remote or ""
    if peer not in trusted_proxies:
        return peer
    said = request.headers.getall("X-Forwarded-For", [])
    last = said[-1].rpartition(",")[2].strip() if said else ""
    try:
        return str(ipaddress.ip_address(last))
    except ValueError:
        return peer


class Connection(RequestHandler):
    """One peer's connection, cut off by a single timer that each phase of it sets anew."""

    __slots__ = ("_limits", "_timer", "opened_at", "waits_for_headers")

    def __init__(self, server: Server, limits: Limits, **options: Any) -> None:
        super().__init__(server, **options)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self.opened_at = 0.0
        self.waits_for_headers = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the peer, or close at once when there is no room."""
        loop = asyncio.get_running_loop()
        server = self._manager
        if isinstance(server, Server) and not server.make_room():
            transport.abort()  # type: ignore[attr-defined]  # a stream transport, typed as its base
            return
        self.opened_at = loop.time()
        super().connection_made(transport)
        self._cut_off_after(self._limits.header_seconds)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the timer with the peer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().connection_lost(exc)

    def begin_request(self) -> None:
        """Say that the headers are complete; the handler calls this first."""
        self.waits_for_headers = False
        self._cut_off_after(self._limits.request_seconds)

    async def finish_response(self, *args: Any, **options: Any) -> tuple[StreamResponse, bool]:
        """Answer, then give the peer the keep-alive time for another request."""
        finished = await super().finish_response(*args, **options)
        self.waits_for_headers = True
        self._cut_off_after(self._limits.keepalive_seconds)
        return finished

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> StreamResponse:
        """Answer what is no HTTP with a constant text: no echo for the peer, no traceback for the log."""
        del exc, message
        if request.writer.output_size > 0:
            raise ConnectionError("an answer was already begun")
        return refuse(400 if status < 500 else 503)  # noqa: PLR2004 - HTTP's own numbers

    def abort(self) -> None:
        """Cut the peer off."""
        if self.transport is not None:
            self.transport.abort()

    def _cut_off_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.transport is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.abort)


class Server(AiohttpServer):
    """A protocol factory for `loop.create_server` that makes `Connection`s.

    Args:
        handler: answers a request; called with complete headers, an unread body, and any path.
        limits: what a peer may cost.
    """

    def __init__(self, handler: Callable[[BaseRequest], Awaitable[StreamResponse]], limits: Limits) -> None:
        async def handle(request: BaseRequest) -> StreamResponse:
            if isinstance(request.protocol, Connection):
                request.protocol.begin_request()
            response = await handler(request)
            response.headers[hdrs.SERVER] = _SERVER
            return response

        super().__init__(handle)
        self.limits = limits
        # Whatever a stranger sends, the log does not grow: aiohttp logs a traceback a request.
        self._silent = logging.getLogger("spotwatch.webhook_guard")
        self._silent.setLevel(logging.CRITICAL + 1)

    def __call__(self) -> Connection:
        """Return the protocol of a new connection."""
        return Connection(
            self,
            self.limits,
            loop=asyncio.get_running_loop(),
            logger=self._silent,
            access_log=None,
            keepalive_timeout=self.limits.keepalive_seconds,
            lingering_time=self.limits.lingering_seconds,
            # A signature covers the bytes as sent; and what is not unpacked cannot be a bomb.
            auto_decompress=False,
        )

    def make_room(self) -> bool:
        """Tell whether one more peer fits; the one that has waited longest without a request goes first.

        Refusing the newest instead would let 32 silent peers lock out the one notice that matters.
        """
        open_now = [c for c in self.connections if isinstance(c, Connection) and c.transport is not None]
        if len(open_now) < self.limits.connections:
            return True
        waiting = [c for c in open_now if c.waits_for_headers]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda c: c.opened_at)
        oldest.abort()
        oldest.force_close()
        return True


async def read_body(request: BaseRequest, limits: Limits) -> bytes:
    """Return the raw body, read once and as it was sent.

    Raises:
        BodyTooLarge: it is over `limits.body_bytes`.
        BodyBroken: the peer left, or framed it wrongly.
        TimeoutError: it took longer than `limits.body_seconds`.
    """
    declared = request.content_length
    if declared is not None and declared > limits.body_bytes:
        raise BodyTooLarge
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            if request.headers.get("Expect", "").lower() == "100-continue":
                await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                request.writer.output_size = 0
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > limits.body_bytes:
                    raise BodyTooLarge
    except (TimeoutError, BodyTooLarge):
        raise
    except Exception as error:
        # aiohttp raises a dozen types here, from ConnectionResetError to its parser's own.
        raise BodyBroken from error
    return bytes(body)


def refuse(status: int, **headers: str) -> Response:
    """Return a refusal that closes the connection and says nothing but its status."""
    response = Response(status=status, text=f"{status}\n", headers={hdrs.SERVER: _SERVER, **headers})
    response.force_close()
    return response


class TokenBuckets:
    """A rate limit for each peer and one for all of them.

    Args:
        peer_rate: requests per second that one peer may send, after a burst of `peer_burst`.
        peer_burst: requests that one peer may send at once.
        total_rate: the same for all peers together: what the loop can verify with ease.
        total_burst: requests that all peers together may send at once.
    """

    _MOST_PEERS = 1024

    def __init__(
        self,
        *,
        peer_rate: float = 10.0,
        peer_burst: float = 30.0,
        total_rate: float = 200.0,
        total_burst: float = 400.0,
    ) -> None:
        self._peer = (peer_rate, peer_burst)
        self._total = (total_rate, total_burst)
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._total_level = (total_burst, float("-inf"))

    def take(self, peer: str, now: float) -> bool:
        """Tell whether `peer` may go on at `now` (monotonic seconds), and count it if so."""
        key = _network(peer)
        level, at = self._levels.pop(key, (self._peer[1], now))
        level = _refilled(level, at, now, self._peer)
        total = _refilled(*self._total_level, now, self._total)
        allowed = level >= 1.0 and total >= 1.0
        self._levels[key] = (level - allowed, now)
        self._total_level = (total - allowed, now)
        if len(self._levels) > self._MOST_PEERS:
            self._levels.popitem(last=False)
        return allowed


def _refilled(level: float, at: float, now: float, limit: tuple[float, float]) -> float:
    rate, burst = limit
    return min(burst, level + rate * max(0.0, now - at))


def _network(peer: str) -> str:
    """Return what one owner controls: an IPv4 address, or an IPv6 /64."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(peer)
        if address.version == 6 and address.ipv4_mapped is None:  # noqa: PLR2004 - IP's own number
            return str(ipaddress.ip_network((address, 64), strict=False))
    return peer
