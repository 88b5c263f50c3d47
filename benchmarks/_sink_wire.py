# SPDX-License-Identifier: Apache-2.0
"""One connection of the sink: requests, bodies and answers of HTTP/1.1, at the pace of a shared link.

It knows nothing of S3. What is only counted is dropped in the kernel (MSG_TRUNC), what is kept is received in
place and what is served goes out by sendfile, so that the sink takes next to no CPU from what it measures.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

# About a millisecond at 240 MB/s: few wake-ups, and ten connections together stay below a burst of 11 ms.
_QUANTUM_BYTES = 256 * 2**10
# What a link may catch up when the sink itself was late; an idle link saves nothing beyond it.
_CREDIT_SECONDS = 0.008
_MOST_HEADER_BYTES = 64 * 2**10
_REASONS = {
    200: "OK",
    204: "No Content",
    206: "Partial Content",
    404: "Not Found",
    409: "Conflict",
    412: "Precondition Failed",
}

# MSG_TRUNC leaves it as it is, so all connections may share it.
_NOWHERE = bytearray(_QUANTUM_BYTES)


class Gone(Exception):
    """The client has closed the connection."""


class Pace:
    """A link of so many bytes a second, shared by all connections and both directions.

    Args:
        bytes_per_second: 0 means no limit.
    """

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._lock = threading.Lock()
        self._free_at = 0.0
        self.bytes = 0
        """Bytes of bodies carried so far."""

    def spend(self, size_bytes: int) -> None:
        """Return once the link has carried `size_bytes` and all that others asked for before."""
        with self._lock:
            self.bytes += size_bytes
            if not self._rate:
                return
            now = time.monotonic()
            self._free_at = max(self._free_at, now - _CREDIT_SECONDS) + size_bytes / self._rate
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request; the body is still on the wire."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]

    @property
    def name(self) -> str:
        """Return `bucket/key`."""
        return self.path.lstrip("/")

    @property
    def bucket(self) -> str:
        """Return the first part of the path."""
        return self.name.partition("/")[0]

    @property
    def key(self) -> str:
        """Return the rest of the path; empty for the bucket itself."""
        return self.name.partition("/")[2]

    @property
    def body_bytes(self) -> int | None:
        """Return the bytes of the body once unwrapped; None: the client does not say."""
        told = self.headers.get("x-amz-decoded-content-length") or self.headers.get("content-length")
        if told is None:
            return None if "transfer-encoding" in self.headers else 0
        return int(told)

    @property
    def is_chunked(self) -> bool:
        """Tell whether the body is in chunks, by HTTP or by `aws-chunked`; the framing is the same."""
        encoding = self.headers.get("content-encoding", "")
        return "transfer-encoding" in self.headers or "aws-chunked" in encoding


class Wire:
    """The server's end of one connection.

    Args:
        sock: connected and blocking.
        pace: what each byte of a body must pass.
    """

    def __init__(self, sock: socket.socket, pace: Pace) -> None:
        self._sock = sock
        self._pace = pace
        self._held = b""

    def request(self) -> Request:
        """Return the next request; raise `Gone` when there is none."""
        while (end := self._held.find(b"\r\n\r\n")) < 0:
            if len(self._held) > _MOST_HEADER_BYTES:
                raise Gone
            self._more(16 * 2**10)
        head, self._held = self._held[:end].decode("latin-1"), self._held[end + 4 :]
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        if headers.get("expect", "").lower() == "100-continue":
            self._sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        return Request(method, unquote(parts.path), query, headers)

    def receive(self, request: Request, target: memoryview | None) -> None:
        """Take the body of `request`, as fast as the link allows.

        Args:
            request: whose body is next on the wire.
            target: as long as the body; None drops it.
        """
        at = 0
        for span in self._spans(request):
            end = at + span
            while at < end:
                size = min(_QUANTUM_BYTES, end - at)
                got = self._drop(size) if target is None else self._fill(target[at : at + size])
                self._pace.spend(got)
                at += got

    def answer(
        self, status: int, headers: Mapping[str, str], body: bytes = b"", *, length: int | None = None
    ) -> None:
        """Send an answer; with `length`, only its head, for a body that follows or for HEAD."""
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Refused')}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if status != 204:
            lines.append(f"Content-Length: {len(body) if length is None else length}")
        self._sock.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def send(self, source: bytes | int, begin: int, end: int) -> None:
        """Send bytes `begin` to `end` of `source`, or of the file that it is the descriptor of."""
        while begin < end:
            size = min(_QUANTUM_BYTES, end - begin)
            self._pace.spend(size)
            piece_end = begin + size
            if isinstance(source, bytes):
                self._sock.sendall(source[begin:piece_end])
                begin = piece_end
                continue
            while begin < piece_end:
                begin += os.sendfile(self._sock.fileno(), source, begin, piece_end - begin)

    def _spans(self, request: Request) -> Iterator[int]:
        if not request.is_chunked:
            yield request.body_bytes or 0
            return
        while size := int(self._line().partition(b";")[0], 16):
            yield size
            self._line()
        while self._line():
            pass  # trailers: checksums, which are not checked

    def _line(self) -> bytes:
        while (end := self._held.find(b"\r\n")) < 0:
            self._more(4096)
        line, self._held = self._held[:end], self._held[end + 2 :]
        return line

    def _more(self, most_bytes: int) -> None:
        got = self._sock.recv(most_bytes)
        if not got:
            raise Gone
        self._held += got

    def _drop(self, size: int) -> int:
        if self._held:
            got = min(size, len(self._held))
            self._held = self._held[got:]
            return got
        got = self._sock.recv_into(_NOWHERE, size, socket.MSG_TRUNC | socket.MSG_WAITALL)
        if not got:
            raise Gone
        return got

    def _fill(self, target: memoryview) -> int:
        if self._held:
            got = min(len(target), len(self._held))
            target[:got] = self._held[:got]
            self._held = self._held[got:]
            return got
        got = self._sock.recv_into(target, len(target), socket.MSG_WAITALL)
        if not got:
            raise Gone
        return got
