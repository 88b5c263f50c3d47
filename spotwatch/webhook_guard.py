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
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from aiohttp import hdrs
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response, StreamResponse
from aiohttp.web_server import Server as AiohttpServer

from spotwatch.rate_limits import networks

# Instead of the versions of Python and aiohttp, which help only an attacker.
_SERVER = "spotwatch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one listener grants its peers."""

    connections: int = 64
    header_seconds: float = 3.0
    """From the connection to the end of the first request's headers; then it is cut off."""
    body_seconds: float = 3.0
    request_seconds: float = 10.0
    """A whole request with its answer, whatever the peer reads or does not read."""
    keepalive_seconds: float = 5.0
    lingering_seconds: float = 1.0
    """How long the rest of a refused body is read away, so that the peer sees the refusal."""
    body_bytes: int = 1048576
    held_bytes: int = 8388608
    """Of all bodies together that are not small, received ones included."""
    small_bytes: int = 65536
    """A body up to here always fits: a reclaim mail is a few KiB."""


class BodyTooLarge(Exception):
    """The body is longer than the limit; the rest was not read."""


class NoRoom(Exception):
    """All bodies together are over the limit, and this is the largest of those that are not whole yet."""


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

    __slots__ = ("_limits", "_peer", "_timer", "is_whole", "network", "since", "waits_for_headers")

    def __init__(self, server: Server, limits: Limits, **options: Any) -> None:
        super().__init__(server, **options)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._peer = ""
        self.network = ""
        """Whose it is; behind a proxy the sender's, as soon as the headers say it."""
        self.since = 0.0
        """When it began to wait for what it waits for: a request, or the rest of one."""
        self.waits_for_headers = True
        self.is_whole = False
        """Whether a request is here, body and all, and its answer is not."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the peer, or close at once when there is no room."""
        loop = asyncio.get_running_loop()
        server = self._manager
        if isinstance(server, Server) and not server.make_room():
            transport.abort()  # type: ignore[attr-defined]  # a stream transport, typed as its base
            return
        self.since = loop.time()
        # ("address", port, ...); a socket that is gone already has none.
        self._peer = (transport.get_extra_info("peername") or ("",))[0]
        self.network = _owner(self._peer)
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
        self.since = asyncio.get_running_loop().time()
        self._cut_off_after(self._limits.request_seconds)

    def speaks_for(self, peer: str) -> None:
        """Say whose request it is; until it is answered the connection counts as this peer's."""
        self.network = _owner(peer)

    def end_body(self) -> None:
        """Say that the request is here: from now on it waits for us alone, and is not thrown out."""
        self.is_whole = True

    async def finish_response(self, *args: Any, **options: Any) -> tuple[StreamResponse, bool]:
        """Answer, then give the peer the keep-alive time for another request."""
        finished = await super().finish_response(*args, **options)
        self.waits_for_headers = True
        self.is_whole = False
        self.network = _owner(self._peer)
        self.since = asyncio.get_running_loop().time()
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
        """Tell whether one more peer fits; else who has most connections loses the oldest unfinished one.

        Refusing the newest instead would let a few silent peers lock out the one notice that matters.
        """
        open_now = [c for c in self.connections if isinstance(c, Connection) and c.transport is not None]
        if len(open_now) < self.limits.connections:
            return True
        unfinished = [c for c in open_now if not c.is_whole]
        if not unfinished:
            return False
        counts = Counter(c.network for c in open_now)
        loser = min(unfinished, key=lambda c: (-counts[c.network], c.since))
        loser.abort()
        loser.force_close()
        return True


class BodyRoom:
    """How many bytes all bodies together take; the largest that is not whole yet goes first.

    Args:
        limits: what a listener grants.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # By identity: a request has no hash.
        self._reading: dict[int, tuple[int, BaseRequest]] = {}
        self._whole: dict[int, int] = {}

    @contextlib.contextmanager
    def holding(self, request: BaseRequest) -> Iterator[None]:
        """Count the body of `request` until it is answered."""
        try:
            yield
        finally:
            self._reading.pop(id(request), None)
            self._whole.pop(id(request), None)

    def grow(self, request: BaseRequest, size: int) -> None:
        """Count so many bytes of a body that is being read.

        Raises:
            NoRoom: they are too many.
        """
        if size <= self._limits.small_bytes:
            return
        self._reading[id(request)] = size, request
        while self._held() > self._limits.held_bytes:
            key = max(self._reading, key=lambda one: self._reading[one][0])
            _, largest = self._reading.pop(key)
            if largest is request:
                raise NoRoom
            if isinstance(largest.protocol, Connection):
                largest.protocol.abort()

    def end(self, request: BaseRequest) -> None:
        """Say that the body of `request` is whole."""
        if id(request) in self._reading:
            self._whole[id(request)], _ = self._reading.pop(id(request))
        if isinstance(request.protocol, Connection):
            request.protocol.end_body()

    def _held(self) -> int:
        return sum(self._whole.values()) + sum(size for size, _ in self._reading.values())


async def read_body(request: BaseRequest, limits: Limits, room: BodyRoom) -> bytes:
    """Return the raw body, read once and as it was sent.

    Raises:
        BodyTooLarge: it is over `limits.body_bytes`.
        NoRoom: all bodies together are over `limits.held_bytes`.
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
                room.grow(request, len(body))
    except (TimeoutError, BodyTooLarge, NoRoom):
        raise
    except Exception as error:
        # aiohttp raises a dozen types here, from ConnectionResetError to its parser's own.
        raise BodyBroken from error
    room.end(request)
    return bytes(body)


def refuse(status: int, **headers: str) -> Response:
    """Return a refusal that closes the connection and says nothing but its status."""
    response = Response(status=status, text=f"{status}\n", headers={hdrs.SERVER: _SERVER, **headers})
    response.force_close()
    return response


def _owner(peer: str) -> str:
    """Return who counts as one where connections are shared out: a network of which each part is cheap."""
    return networks(peer)[1]
