# SPDX-License-Identifier: Apache-2.0
"""The health check of the image: whom it asks, what it answers, and how little it imports."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from spotwatch.healthz import ask

Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]
_NOWHERE = Path("/nonexistent/spotwatch.toml")


def _answering(reply: bytes) -> Answering:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        assert request.startswith(b"GET /healthz HTTP/1.1\r\n")
        writer.write(reply)
        writer.close()
        await writer.wait_closed()

    return answer


@asynccontextmanager
async def _listening(reply: bytes, host: str = "127.0.0.1") -> AsyncIterator[int]:
    server = await asyncio.start_server(_answering(reply), host, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("reply", "is_well", "said"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n", True, "ok"),
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 6\r\n\r\nstuck\n", False, "stuck"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", False, "HTTP 404"),
        (b"SSH-2.0-OpenSSH\r\n", False, "answers, but not as spotwatch does (BadStatusLine)"),
    ],
)
async def test_the_daemon_decides(reply: bytes, is_well: bool, said: str) -> None:
    """Only a 200 of /healthz is well; everything else is said in a line."""
    async with _listening(reply) as port:
        listen = f"127.0.0.1:{port}"
        answer = await asyncio.to_thread(ask, {"SPOTWATCH_HTTP__LISTEN": listen}, default_path=_NOWHERE)
    assert answer == (is_well, f"{listen}: {said}")


async def test_it_follows_the_configuration_file(tmp_path: Path) -> None:
    """The address is that of the file, a listener on every address is asked on loopback."""
    file = tmp_path / "spotwatch.toml"
    async with _listening(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n") as port:
        file.write_text(f'[http]\nlisten = "0.0.0.0:{port}"\n')
        by_name = await asyncio.to_thread(ask, {"SPOTWATCH_CONFIG": str(file)}, default_path=_NOWHERE)
        by_place = await asyncio.to_thread(ask, {}, default_path=file)
    assert by_name == by_place == (True, f"0.0.0.0:{port}: ok")


def test_nobody_there_is_said() -> None:
    """A refused connection names the address and what to look at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        is_well, line = ask({"SPOTWATCH_HTTP__LISTEN": listen}, default_path=_NOWHERE)
    assert not is_well
    assert line == f"{listen}: Connection refused; does the daemon run, with the same http.listen?"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"SPOTWATCH_HTTP__LISTEN": ""}, "http.listen is off"),
        ({"SPOTWATCH_HTTP__LISTEN": "9475"}, "write HOST:PORT"),
        ({"SPOTWATCH_CONFIG": "/nonexistent.toml"}, "/nonexistent.toml: cannot be read"),
    ],
)
def test_what_cannot_be_asked_is_not_well(environ: dict[str, str], words: str) -> None:
    """Without an address there is no health, and the line says what to mend."""
    is_well, line = ask(environ, default_path=_NOWHERE)
    assert not is_well
    assert words in line


def test_it_imports_the_standard_library_alone() -> None:
    """It is run twice a minute: no aiohttp, no click, no cattrs."""
    script = "import sys, spotwatch.healthz; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"aiohttp", "attr", "cattrs", "click", "requests", "structlog"} & set(done.stdout.split())
