# SPDX-License-Identifier: Apache-2.0
"""A daemon that holds its lock and does nothing is called by its name, and not a busy port."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from spotwatch.checks.finding import Result
from spotwatch.checks.pages import ask_http, judge_silence
from spotwatch.checks.sockets import holds_port
from spotwatch.server import MetricsServer
from tests.checks.bench import Bench, free_port, named
from tests.real.namespace import wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="reads /proc")


def test_a_stopped_daemon_is_no_busy_port(bench: Bench) -> None:
    """SIGSTOP: its kernel still takes connections; the daemon is to be restarted, the port is its own."""
    port = free_port()
    toml = f'[http]\nlisten = "127.0.0.1:{port}"\n'
    loaded = bench.load(toml)
    places = [f"--runtime-dir={bench.runtime_dir}", f"--state-dir={bench.state_dir}", "--provider=file"]
    command = [sys.executable, "-m", "spotwatch", "run", f"--config={bench.home / 'spotwatch.toml'}", *places]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as daemon:
        try:
            wait_until(lambda: holds_port(daemon.pid, port) is True, 60, "the daemon's pages")
            daemon.send_signal(signal.SIGSTOP)
            findings = asyncio.run(bench.run(loaded))
            (line,) = named(findings, "daemon.hangs")
            (state,) = named(findings, "daemon")
        finally:
            daemon.kill()
    assert (line.result, named(findings, "http")) == (Result.FAIL, [])
    assert f"pid {daemon.pid} listens there: it hangs" in line.found
    assert line.mend.startswith("restart it: systemctl restart spotwatch")
    assert "http.listen" not in line.mend
    assert (state.result, f"kill -CONT {daemon.pid}" in state.mend) == (Result.FAIL, True)


async def test_a_daemon_that_says_it_is_stuck_is_a_failure() -> None:
    """Its pages answer, and /healthz has it that the loop no longer turns."""
    pages = MetricsServer(
        "127.0.0.1:0",
        render=lambda _: (b'spotwatch_build_info{version="0.1.0"} 1.0\n', "text/plain"),
        is_healthy=lambda: False,
        not_ready=list,
        status=dict,
        say=pytest.fail,
    )
    await pages.start()
    try:
        (line,) = await ask_http(f"127.0.0.1:{pages.port}", pid=0)
    finally:
        await pages.close()
    assert (line.name, line.result) == ("daemon.hangs", Result.FAIL)
    assert "restart it" in line.mend


def test_whose_silence_it_is_decides() -> None:
    """A port that somebody else holds is a busy port; one that nobody can be named for may be either."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
        listen = f"127.0.0.1:{port}"
        ours = judge_silence(listen, os.getpid())
        with subprocess.Popen(["sleep", "60"]) as other:
            try:
                theirs = judge_silence(listen, other.pid)
            finally:
                other.kill()
        unseen = judge_silence(listen, 0)
        nobody = judge_silence(listen, None)
    assert (ours.result, ours.name) == (Result.FAIL, "daemon.hangs")
    assert (theirs.result, theirs.name, "free port" in theirs.mend) == (Result.WARN, "http", True)
    assert (unseen.result, "free port" in unseen.mend) == (Result.FAIL, True)
    assert (nobody.result, nobody.name) == (Result.WARN, "http")
    assert holds_port(os.getpid(), port) is None


async def test_the_pages_of_another_daemon_are_not_taken_for_this_ones() -> None:
    """Two daemons, one port: the second has none, and what the first says is not about it."""
    pages = MetricsServer(
        "127.0.0.1:0",
        render=lambda _: (b'spotwatch_build_info{version="0.1.0"} 1.0\n', "text/plain"),
        is_healthy=lambda: True,
        not_ready=list,
        status=dict,
        say=pytest.fail,
    )
    await pages.start()
    other = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        (line,) = await ask_http(f"127.0.0.1:{pages.port}", pid=other.pid)
        (own,) = await ask_http(f"127.0.0.1:{pages.port}", pid=os.getpid())
    finally:
        other.kill()
        await other.wait()
        await pages.close()
    assert (line.result, "another daemon answers" in line.found) == (Result.WARN, True)
    assert own.result is Result.OK
