# SPDX-License-Identifier: Apache-2.0
"""A proxy in front of an S3 server that is told, request by request, what is to go wrong.

The Host header goes through as it came, so that signatures stay valid. By itself it answers only faults.
"""

from __future__ import annotations

import contextlib
import http.client
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as far as a fault may depend on it."""

    number: int
    method: str
    path: str
    query: dict[str, list[str]]

    @property
    def is_part(self) -> bool:
        """Tell whether it brings a part of an upload."""
        return self.method == "PUT" and "partNumber" in self.query


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with one request.

    Args:
        refuse: status and code that are answered instead of asking the server.
        lose_answer: the server does it, and nobody hears of that.
        cut_bytes: so many bytes of the answer's body come through.
        without: headers of the request that do not go through.
    """

    refuse: tuple[int, str] | None = None
    lose_answer: bool = False
    cut_bytes: int | None = None
    without: tuple[str, ...] = ()


FINE = Fault()


class S3Proxy:
    """The proxy; `fault` may be set at any time.

    Args:
        upstream: URL of the server.
    """

    def __init__(self, upstream: str) -> None:
        self.fault: Callable[[Call], Fault] = lambda _: FINE
        self.calls: list[Call] = []
        self.lock = threading.Lock()
        self.upstream = urlsplit(upstream).netloc
        self._server = _Quiet(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def url(self) -> str:
        """Return where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def once(self, wanted: Callable[[Call], bool], fault: Fault, times: int = 1) -> None:
        """Let `fault` happen to the first `times` calls that are `wanted`."""
        left = [fault] * times
        self.fault = lambda call: left.pop() if wanted(call) and left else FINE

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def proxy_to(upstream: str) -> Iterator[S3Proxy]:
    """Run a proxy for as long as the block."""
    proxy = S3Proxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()


class _Quiet(ThreadingHTTPServer):
    """Does not print that a client hung up: some of the tests make it do so."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of that, and all else as ever."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def _handler(proxy: S3Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # An answer in two small pieces waits for the acknowledgement of the first.
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            url = urlsplit(self.path)
            with proxy.lock:
                query = parse_qs(url.query, keep_blank_values=True)
                call = Call(len(proxy.calls), self.command, url.path, query)
                proxy.calls.append(call)
                fault = proxy.fault(call)
            if fault.refuse:
                status, code = fault.refuse
                told = (
                    f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()
                )
                self._answer(status, [("Content-Type", "application/xml")], told)
                return
            status, headers, answer = self._forward(body, fault)
            if fault.lose_answer:
                self.close_connection = True
                return
            self._answer(status, headers, answer, fault.cut_bytes)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - http.server's names

        def _forward(self, body: bytes, fault: Fault) -> tuple[int, list[tuple[str, str]], bytes]:
            gone = {"expect", "connection", *(name.lower() for name in fault.without)}
            headers = {name: value for name, value in self.headers.items() if name.lower() not in gone}
            with contextlib.closing(http.client.HTTPConnection(proxy.upstream, timeout=30)) as connection:
                connection.request(self.command, self.path, body, headers)
                answer = connection.getresponse()
                return answer.status, answer.getheaders(), answer.read()

        def _answer(
            self, status: int, headers: list[tuple[str, str]], body: bytes, cut_bytes: int | None = None
        ) -> None:
            self.send_response_only(status)
            is_head = self.command == "HEAD"
            for name, value in headers:
                if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(name, value)
            told = {name.lower(): value for name, value in headers}.get("content-length")
            self.send_header("Content-Length", told if is_head and told else str(len(body)))
            self.end_headers()
            if not is_head:
                self.wfile.write(body[:cut_bytes])
            self.close_connection = cut_bytes is not None

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler
