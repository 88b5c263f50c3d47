# SPDX-License-Identifier: Apache-2.0
"""Whatever hangs or breaks, all lines are there in time, in their order."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest

from spotwatch.checks import Finding, Result, document, refused
from spotwatch.checks.finding import fail, ok, warn
from spotwatch.checks.frame import LIMIT_SECONDS
from spotwatch.checks.limits import LooseThreads, answered, in_thread
from spotwatch.checks.pages import ask_http, judge_settings
from spotwatch.emulator import Emulator
from spotwatch.errors import ConfigError
from spotwatch.server import MetricsServer
from tests.checks.bench import Bench, free_port, named
from tests.checks.test_clouds import config


async def test_everything_hangs(bench: Bench) -> None:
    """A silent cloud, a silent systemd, a silent daemon: ten seconds more than usual, and no line misses."""
    began = time.monotonic()
    await bench.check()
    usual = time.monotonic() - began
    bench.systemd({}, hangs=True)
    silent = socket.create_server(("127.0.0.1", 0))
    port = silent.getsockname()[1]
    more = f'[http]\nlisten = "127.0.0.1:{port}"\n[[target]]\nunit = "train"\n'
    began = time.monotonic()
    async with Emulator("gcp") as cloud:
        cloud.fault("hang")
        findings = await bench.check(config(cloud, more))
        took = time.monotonic() - began
        cloud.heal()
    silent.close()
    assert took - usual < 10
    assert {"cloud", "clock", "target", "http", "daemon", "runtime_dir"} <= {line.name for line in findings}
    assert named(findings, "target")[0].result is Result.FAIL
    assert "no answer within 2 s" in named(findings, "target")[0].found


async def test_a_question_that_blocks_is_cut_off() -> None:
    """A directory on a dead server blocks a thread, not the check."""
    release = threading.Event()

    async def question() -> list[Finding]:
        await in_thread(release.wait)
        return []

    (line,) = await answered("runtime_dir", question(), 0.05)
    assert (line.name, line.result, line.found) == ("runtime_dir", Result.FAIL, "no answer within 0.05 s")
    release.set()


async def test_a_question_that_breaks_is_a_line() -> None:
    """An error of our own is told, and the others go on."""

    async def question() -> list[Finding]:
        return [await in_thread(lambda: ok("x", str(1 // 0)))]

    (line,) = await answered("x", question(), 5)
    assert (line.result, "ZeroDivisionError" in line.found) == (Result.FAIL, True)


def test_the_end_waits_for_no_thread() -> None:
    """A name server that is dead blocks a library's thread, and must not keep the process."""
    release = threading.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(LooseThreads())
        waiting = [asyncio.ensure_future(asyncio.to_thread(release.wait)) for _ in range(3)]
        assert await asyncio.to_thread(sum, (1, 2)) == 3
        for one in waiting:
            one.cancel()

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 10
    release.set()


async def test_libraries_get_loose_threads_too(bench: Bench) -> None:
    """What resolves names in the background uses the loop's own executor, which must be ours."""
    await bench.check()
    thread = await asyncio.to_thread(threading.current_thread)
    assert thread.daemon


def test_limit_leaves_room_within_ten_seconds() -> None:
    """The limit of a question is the promise of the whole."""
    assert LIMIT_SECONDS < 10


async def test_lines_come_in_a_fixed_order(bench: Bench) -> None:
    """Two runs differ in what they find, never in the order of the questions."""
    first = [line.name for line in await bench.check()]
    assert first[:2] == ["configuration", "cloud"]
    assert first == [line.name for line in await bench.check()]


def test_refused_configuration_is_a_line_for_each_problem() -> None:
    """Each with its own mend where the problem knows one."""
    lines = refused(ConfigError("a.b: is wrong; write c", "d: unknown key"))
    assert [(line.found, line.mend) for line in lines] == [
        ("a.b: is wrong", "write c"),
        ("d: unknown key", "mend it, and run the check again"),
    ]


def test_document_is_versioned_and_harmless() -> None:
    """The one document, its verdict, and no control character from a file or a cloud."""
    made = document([ok("a", "fine"), warn("b", "x\x1b[31m\n", "do")])
    assert made["version"] == 1
    assert made["verdict"] == "ok"
    assert made["checks"][1] == {"name": "b", "result": "warn", "found": "x\\x1b[31m\\n", "mend": "do"}
    assert document([fail("a", "b", "c")])["verdict"] == "fail"


def server(*, reasons: list[str], version: str | None) -> MetricsServer:
    """Return the daemon's pages, as they would be."""
    page = f'spotwatch_build_info{{version="{version}"}} 1.0\n' if version else "other_metric 1\n"
    return MetricsServer(
        "127.0.0.1:0",
        render=lambda _: (page.encode(), "text/plain"),
        is_healthy=lambda: True,
        not_ready=lambda: reasons,
        status=dict,
        say=pytest.fail,
    )


@pytest.mark.parametrize(
    ("reasons", "version", "expected"),
    [
        ([], "0.1.0", [("http", "ok")]),
        (["aws: silent", "webhook: taken"], "0.1.0", [("ready", "fail"), ("ready", "fail")]),
        ([], "0.0.9", [("daemon.version", "warn"), ("http", "ok")]),
        ([], None, [("http", "warn")]),
    ],
)
async def test_daemons_pages(
    reasons: list[str], version: str | None, expected: list[tuple[str, str]]
) -> None:
    """Ready, not ready with each reason, of another version, or somebody else's port."""
    pages = server(reasons=reasons, version=version)
    await pages.start()
    try:
        lines = await ask_http(f"127.0.0.1:{pages.port}", pid=0)
    finally:
        await pages.close()
    assert [(line.name, line.result.value) for line in lines] == expected


async def test_another_daemons_pages() -> None:
    """Where our user sees no daemon and one answers, it is another one's, or hidden from us."""
    pages = server(reasons=[], version="0.1.0")
    await pages.start()
    try:
        (line,) = await ask_http(f"127.0.0.1:{pages.port}", pid=None)
    finally:
        await pages.close()
    assert (line.result, "sudo" in line.mend) == (Result.WARN, True)


def test_a_daemon_with_other_settings_is_told_by_section() -> None:
    """Equal is silent, a daemon that does not say is not blamed, and without a file nobody edited one."""
    ours = {"target": "a", "http": "b", "state_dir": "c"}
    assert list(judge_settings(ours, ours, has_file=True)) == []
    assert list(judge_settings({}, ours, has_file=True)) == []
    (line,) = judge_settings({"target": "x", "http": "b"}, ours, has_file=True)
    assert (line.result, line.name) == (Result.FAIL, "daemon.settings")
    assert line.found.endswith(": target")
    assert "systemctl restart spotwatch" in line.mend
    (line,) = judge_settings({"target": "x"}, ours, has_file=False)
    assert line.result is Result.WARN


async def test_a_port_that_was_edited() -> None:
    """Nobody listens where the file says, and a daemon runs: perhaps it has not read the file."""
    (line,) = await ask_http(f"127.0.0.1:{free_port()}", pid=0)
    assert "if http.listen was edited: systemctl restart spotwatch" in line.mend


async def test_http_off(bench: Bench) -> None:
    """Nothing is asked where nothing listens."""
    (line,) = named(await bench.check(), "http")
    assert line.result is Result.SKIP
