# SPDX-License-Identifier: Apache-2.0
"""A metadata service of raw bytes on loopback, which remembers what it is asked and answers what a test says.

It knows no cloud. It speaks just enough HTTP/1.1 to be wrong in every way that a real service can be.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from spotwatch.errors import Denied, Malformed, ProviderError, Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as it came."""

    method: str
    target: str
    """Path and query."""
    headers: tuple[tuple[str, str], ...]
    """Names in lower case; one sent twice is here twice."""
    body: bytes

    @property
    def path(self) -> str:
        """Return the target without its query."""
        return self.target.partition("?")[0]

    def values(self, name: str) -> list[str]:
        """Return all values of a header."""
        return [value for key, value in self.headers if key == name.lower()]


Behaviour = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    """A server on a free port of loopback.

    Args:
        routes: by `METHOD path` or by path; what is in neither is answered 404.
        host: where to listen.
    """

    def __init__(self, routes: dict[str, Behaviour] | None = None, *, host: str = "127.0.0.1") -> None:
        self.routes = dict(routes or {})
        self.requests: list[Request] = []
        self.connections = 0
        self._host = host
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, self._host, 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drop everybody and stop listening."""
        assert self._server is not None
        self._server.close()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def open_connections(self) -> int:
        """Return how many clients are connected now."""
        return len(self._open)

    @property
    def tasks(self) -> frozenset[asyncio.Future[Any]]:
        """Return the server's own tasks."""
        return frozenset(self._tasks)

    def asked(self, path: str, method: str = "GET") -> int:
        """Return how often a path was asked for."""
        return sum(1 for r in self.requests if r.path == path and r.method == method)

    async def wait_for(self, condition: Callable[[], bool], *, limit_seconds: float = 5) -> None:
        """Return once `condition` holds; it is looked at when a request or a connection comes or goes."""
        async with asyncio.timeout(limit_seconds):
            while not condition():
                await self._changed.wait()

    async def wait_until_idle(self) -> None:
        """Return once nobody is connected any more."""
        await self.wait_for(lambda: not self._open)

    def _note(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open.add(writer)
        self.connections += 1
        self._note()
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while not writer.is_closing():
                    request = await _read(reader)
                    self.requests.append(request)
                    self._note()
                    key = f"{request.method} {request.path}"
                    behave = self.routes.get(key) or self.routes.get(request.path) or status(404)
                    await _unless_gone(behave(request, writer), reader, self._tasks)
        finally:
            self._open.discard(writer)
            self._tasks.discard(task)
            self._note()
            writer.close()


async def _unless_gone(
    acting: Awaitable[None], reader: asyncio.StreamReader, tasks: set[asyncio.Future[Any]]
) -> None:
    """Await `acting`, but no longer than the client stays."""
    doing = asyncio.ensure_future(acting)
    leaving = asyncio.ensure_future(reader.read(1))
    tasks |= {doing, leaving}
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            doing.result()
        elif leaving.result() == b"":
            raise ConnectionResetError
        else:
            raise AssertionError("the client sent a second request before it had the first answer")
    finally:
        doing.cancel()
        leaving.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)
        tasks -= {doing, leaving}


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ", 2)
    pairs = [line.split(":", 1) for line in lines]
    headers = tuple((name.lower(), value.strip()) for name, value in pairs)
    length = next((int(value) for name, value in headers if name == "content-length"), 0)
    return Request(method=method, target=target, headers=headers, body=await reader.readexactly(length))


def body(
    content: bytes | str, *, code: int = 200, headers: dict[str, str] | None = None, length: int | None = None
) -> Behaviour:
    """Return a behaviour that answers with `content`, claiming `length` bytes when that is given."""
    raw = content.encode() if isinstance(content, str) else content
    lines = [f"HTTP/1.1 {code} Whatever", f"Content-Length: {len(raw) if length is None else length}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    message = "\r\n".join(lines).encode() + b"\r\n\r\n" + raw

    async def behave(_request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(message)
        await writer.drain()
        if length is not None:
            writer.close()

    return behave


def status(code: int, headers: dict[str, str] | None = None) -> Behaviour:
    """Return a behaviour that answers with `code` and an error page."""
    return body("<html><body>no</body></html>", code=code, headers=headers)


def raw(message: bytes) -> Behaviour:
    """Return a behaviour that sends these bytes and closes."""

    async def behave(_request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(message)
        await writer.drain()
        writer.close()

    return behave


def in_turn(*behaviours: Behaviour) -> Behaviour:
    """Return a behaviour that is each of these once, and the last one from then on."""
    rest = list(behaviours)

    async def behave(request: Request, writer: asyncio.StreamWriter) -> None:
        await (rest.pop(0) if len(rest) > 1 else rest[0])(request, writer)

    return behave


def after(seconds: float, then: Behaviour) -> Behaviour:
    """Return a behaviour that takes its time."""

    async def behave(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds)
        await then(request, writer)

    return behave


async def hang(_request: Request, _writer: asyncio.StreamWriter) -> None:
    """Never answer."""
    await asyncio.Event().wait()


async def hang_after_head(_request: Request, writer: asyncio.StreamWriter) -> None:
    """Send the head of a 200, then nothing."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n")
    await asyncio.Event().wait()


async def drip(_request: Request, writer: asyncio.StreamWriter) -> None:
    """Send a body byte by byte, for ever, so that only a limit on the whole can end it."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


async def reset(_request: Request, writer: asyncio.StreamWriter) -> None:
    """Abort the connection with a RST."""
    _linger_nothing(writer)
    writer.transport.abort()


async def reset_in_body(_request: Request, writer: asyncio.StreamWriter) -> None:
    """Abort the connection with a RST in the middle of a body."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{")
    await writer.drain()
    _linger_nothing(writer)
    writer.transport.abort()


def _linger_nothing(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def endless(_request: Request, writer: asyncio.StreamWriter) -> None:
    """Send a body without a length and without an end, as fast as the client reads."""
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunk = b"%x\r\n%b\r\n" % (65536, b"[" * 65536)
    while True:
        writer.write(chunk)
        await writer.drain()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A way to answer wrongly, and the error that it must become."""

    behave: Behaviour
    error: type[ProviderError]


_HTML = "<!DOCTYPE html><html><body>Please log in to the network</body></html>"

FAULTS: dict[str, Fault] = {
    "401": Fault(behave=status(401), error=Denied),
    "403": Fault(behave=status(403), error=Denied),
    "408": Fault(behave=status(408), error=Unavailable),
    "418": Fault(behave=status(418), error=Malformed),
    "429": Fault(behave=status(429, {"Retry-After": "2"}), error=Unavailable),
    "500": Fault(behave=status(500), error=Unavailable),
    "503": Fault(behave=status(503), error=Unavailable),
    "hang": Fault(behave=hang, error=Unavailable),
    "hang_after_head": Fault(behave=hang_after_head, error=Unavailable),
    "drip": Fault(behave=drip, error=Unavailable),
    "reset": Fault(behave=reset, error=Unavailable),
    "reset_in_body": Fault(behave=reset_in_body, error=Unavailable),
    "closed": Fault(behave=raw(b""), error=Unavailable),
    "truncated": Fault(behave=body('{"action": "stop"', length=500), error=Unavailable),
    "truncated_chunk": Fault(
        behave=raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20\r\n{}"), error=Unavailable
    ),
    "huge": Fault(behave=body(b"[" * 10_000_000), error=Malformed),
    "endless": Fault(behave=endless, error=Malformed),
    "redirect": Fault(behave=status(302, {"Location": "/elsewhere"}), error=Malformed),
    "not_http": Fault(behave=raw(b"SSH-2.0-OpenSSH_9.2\r\n"), error=Malformed),
    "gzip": Fault(
        behave=body(gzip.compress(b"[]" * 1000), headers={"Content-Encoding": "gzip"}), error=Malformed
    ),
    # Below: complete answers with a status of 200, so only whoever knows the cloud can refuse them.
    "html": Fault(behave=body(_HTML), error=Malformed),
    "empty": Fault(behave=body(""), error=Malformed),
    "wrong_type": Fault(behave=body('{"unexpected": [1, 2]}'), error=Malformed),
    "half_json": Fault(behave=body('{"action": "term'), error=Malformed),
    "binary": Fault(behave=body(b"\xff\xfe\x00\x01"), error=Malformed),
    "deep": Fault(behave=body(b"[" * 60_000), error=Malformed),
}
PAYLOAD_FAULTS = ("html", "empty", "wrong_type", "half_json", "binary", "deep")
