# SPDX-License-Identifier: Apache-2.0
"""A process that may have few open files: it takes what it may, and a lack of them floods no log."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spotwatch.open_files import SAY_SECONDS, WANTED, Told
from tests.relay.home import Home, page, until

_LIMITED = """
import os, resource, sys
soft, hard = map(int, sys.argv[1:3])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
os.execv(sys.executable, [sys.executable, "-m", "spotwatch", *sys.argv[3:]])
"""


def _start(home: Home, log: Path, soft: int, hard: int) -> subprocess.Popen[bytes]:
    """Run a relay that may have so many files open."""
    argv = [sys.executable, "-c", _LIMITED, str(soft), str(hard), "relay", "--config", str(home.config)]
    with log.open("wb") as file:
        return subprocess.Popen(argv, stdout=file, stderr=file)


def _port(home: Home) -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    home.listen = f"127.0.0.1:{port}"
    return port


def _lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


def _soft_limit(pid: int) -> int:
    return resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]


async def test_the_limit_is_raised_to_what_it_may_be(tmp_path: Path) -> None:
    """A shell's or a unit's low soft limit does not count where the hard one allows more."""
    home, log = Home(tmp_path), tmp_path / "log"
    _port(home)
    relay = await asyncio.to_thread(_start, home, log, 64, WANTED + 1000)
    try:
        await until(lambda: any(line["event"] == "relaying" for line in _lines(log)))
        assert _soft_limit(relay.pid) == WANTED
    finally:
        relay.terminate()
        assert await asyncio.to_thread(relay.wait, 20) == 0


async def test_too_few_files_flood_no_log(tmp_path: Path) -> None:
    """Idle connections take all that it may have: one line says so, and it answers when they have gone."""
    home, log = Home(tmp_path), tmp_path / "log"
    port = _port(home)
    relay = await asyncio.to_thread(_start, home, log, 48, 48)
    held: list[socket.socket] = []
    try:
        await until(lambda: any(line["event"] == "relaying" for line in _lines(log)))
        for _ in range(150):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
            held.append(one)
        await until(lambda: any(line["event"] == "open files" for line in _lines(log)))
        # Asyncio tries again after a second; the connections are let go only then, for it to fail again.
        await asyncio.sleep(2.5)
        for one in held:
            one.close()
        assert (await page(port, "/webhook/digitalocean"))[0] == 405
        told = [line for line in _lines(log) if line["event"] == "open files"]
        assert len(told) == 1
        assert "48 files" in told[0]["problem"]
        assert "LimitNOFILE" in told[0]["problem"]
        assert "Traceback" not in log.read_text()
        assert log.stat().st_size < 20_000
    finally:
        for one in held:
            one.close()
        relay.terminate()
        await asyncio.to_thread(relay.wait, 20)


def test_it_is_said_once_a_minute() -> None:
    """And what is another error goes where such errors go."""
    said: list[str] = []
    passed: list[Mapping[str, Any]] = []

    class Loop(asyncio.SelectorEventLoop):
        def default_exception_handler(self, context: dict[str, Any]) -> None:
            passed.append(context)

    moments = (0.0, 1.0, SAY_SECONDS - 1, SAY_SECONDS, SAY_SECONDS + 1)
    told = Told(64, say=said.append, time=iter(moments).__next__)
    loop = Loop()
    try:
        full = {"message": "socket.accept() out of system resource", "exception": OSError(24, "Too many")}
        for _ in moments:
            told(loop, full)
        told(loop, {"message": "another"})
    finally:
        loop.close()
    assert len(said) == 2
    assert passed == [{"message": "another"}]
