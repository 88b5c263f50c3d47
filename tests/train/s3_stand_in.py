# SPDX-License-Identifier: Apache-2.0
"""An S3 server in this process that can be told to fail: multipart uploads, ranges, and every call on record.

It checks no signature and keeps everything in memory. Google's XML interface is the same but for generations,
which it knows too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

_XML = '<?xml version="1.0" encoding="UTF-8"?>'


@dataclass(frozen=True)
class Call:
    """One request, its body read."""

    method: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = field(repr=False)

    @property
    def part(self) -> int | None:
        """Return the number of the part that is sent; None when it is something else."""
        return int(self.query["partNumber"]) if self.method == "PUT" and "partNumber" in self.query else None


@dataclass(frozen=True)
class Reply:
    """What goes back; None of a fault means the ordinary answer."""

    status: int
    body: str | bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


def refusal(status: int, code: str, message: str = "") -> Reply:
    """Return an error as S3 words it."""
    return Reply(status, f"{_XML}<Error><Code>{code}</Code><Message>{message}</Message></Error>")


class S3StandIn:
    """Serves any bucket, path style, until the `with` ends; `fault` is asked before every answer."""

    def __init__(self, fault: Callable[[Call], Reply | None] = lambda _: None) -> None:
        self.fault = fault
        self.calls: list[Call] = []
        self.objects: dict[str, bytes] = {}
        self.generations: dict[str, int] = {}
        self.uploads: dict[str, tuple[str, dict[int, bytes]]] = {}
        self.lock = threading.Lock()
        self._connections: set[Any] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"stand_in": self}))
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Stop as a machine that loses power: no listener, and every connection cut."""
        self._server.shutdown()
        self._server.server_close()
        with self.lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(2)

    def sent(self, part: int | None = None) -> list[Call]:
        """Return the calls that sent a part, all or those of one number."""
        return [c for c in list(self.calls) if c.part is not None and part in (None, c.part)]

    def answer(self, call: Call) -> Reply:
        """Return what a sound server says."""
        with self.lock:
            if {"uploads", "uploadId"} & call.query.keys():
                return self._multipart(call)
            if call.method == "PUT":
                return self._keep(call)
            if call.method == "DELETE":
                return Reply(204 if self.objects.pop(call.key, None) is not None else 404)
            return self._list(call) if call.key == "" else self._read(call)

    def _multipart(self, call: Call) -> Reply:
        upload = call.query.get("uploadId") or f"upload-{len(self.calls)}"
        if "uploads" in call.query:
            self.uploads[upload] = (call.key, {})
            told = f"<Key>{escape(call.key)}</Key><UploadId>{upload}</UploadId>"
            return Reply(200, _xml("InitiateMultipartUploadResult", told))
        if upload not in self.uploads:
            return refusal(404, "NoSuchUpload")
        key, parts = self.uploads[upload]
        if call.part is not None:
            parts[call.part] = call.body
            return Reply(200, headers=(("ETag", f'"{call.part}"'),))
        del self.uploads[upload]
        if call.method == "DELETE":
            return Reply(204)
        self.objects[key] = b"".join(parts[number] for number in sorted(parts))
        told = f'<Key>{escape(key)}</Key><ETag>"1"</ETag>'
        return Reply(200, _xml("CompleteMultipartUploadResult", told))

    def _keep(self, call: Call) -> Reply:
        generation = self.generations.get(call.key, 0) if call.key in self.objects else 0
        if call.headers.get("x-goog-if-generation-match", str(generation)) != str(generation):
            return refusal(412, "PreconditionFailed")
        self.objects[call.key] = call.body
        self.generations[call.key] = len(self.calls)
        return Reply(200, headers=self._facts(call.key))

    def _read(self, call: Call) -> Reply:
        body = self.objects.get(call.key)
        if body is None:
            return refusal(404, "NoSuchKey", "The specified key does not exist.")
        headers = self._facts(call.key)
        if wanted := call.headers.get("range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last) + 1 if last else len(body), len(body))
            if begin >= len(body):
                return refusal(416, "InvalidRange")
            place = ("Content-Range", f"bytes {begin}-{end - 1}/{len(body)}")
            return Reply(206, body[begin:end], (*headers, place))
        return Reply(200, body, headers)

    def _list(self, call: Call) -> Reply:
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(body)}</Size><ETag>1</ETag>"
            "<LastModified>2026-11-29T10:00:00.000Z</LastModified></Contents>"
            for key, body in self.objects.items()
            if key.startswith(call.query.get("prefix", ""))
        )
        return Reply(200, _xml("ListBucketResult", f"<IsTruncated>false</IsTruncated>{rows}"))

    def _facts(self, key: str) -> tuple[tuple[str, str], ...]:
        generation = str(self.generations.get(key, 1))
        return (
            ("ETag", f'"{generation}"'),
            ("Last-Modified", "Sun, 29 Nov 2026 10:00:00 GMT"),
            ("x-goog-generation", generation),
        )


def _xml(name: str, content: str) -> str:
    return f"{_XML}<{name}>{content}</{name}>"


class _Handler(BaseHTTPRequestHandler):
    stand_in: S3StandIn
    protocol_version = "HTTP/1.1"
    # A body goes out in pieces of its own; waiting for acknowledgements would cost 40 ms each.
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        with self.stand_in.lock:
            self.stand_in._connections.add(self.connection)

    def finish(self) -> None:
        with self.stand_in.lock:
            self.stand_in._connections.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            super().handle()

    def serve(self) -> None:
        parts = urlsplit(self.path)
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        if len(body) < size:
            self.close_connection = True
            return
        call = Call(
            self.command,
            unquote(parts.path).lstrip("/").partition("/")[2],
            dict(parse_qsl(parts.query, keep_blank_values=True)),
            {name.lower(): value for name, value in self.headers.items()},
            body,
        )
        with self.stand_in.lock:
            self.stand_in.calls.append(call)
        reply = self.stand_in.fault(call) or self.stand_in.answer(call)
        content = reply.body.encode() if isinstance(reply.body, str) else reply.body
        self.send_response(reply.status)
        for name, value in reply.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = serve  # noqa: N815 - http.server's names

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        pass
