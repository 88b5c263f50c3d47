# SPDX-License-Identifier: Apache-2.0
"""`status` shows what the daemon says, or its files when it is silent, and says when nobody is there.

That the daemon's own document is right is tested with the daemon.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from spotwatch.cli._status_text import describe
from spotwatch.cli._words import ago, size, span, until
from spotwatch.cli.status import command
from spotwatch.errors import ConfigError
from spotwatch.handshake import Order, Saved, Status, write_status
from spotwatch.model import Do, to_rfc3339
from spotwatch.runtime_lock import lock_runtime_dir
from spotwatch.safe_files import write_atomically
from spotwatch.testing import EPOCH
from tests.cli.status_document import DOCUMENT
from tests.cli.stranger import STRANGER, open_to_all, run_as_stranger
from tests.families import needs_root

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Answer], Awaitable[str]]


TEXT = """\
spotwatch 0.1.0 on i-0abc
A stop has been ordered on this machine (draining).
Watched:
  aws: up, asked every 1 s
    instance-action        ok           answered 2 s ago
    asg                    denied       never answered - HTTP 403
                           to mend it: turn IMDS on
Notices in force:
  aws instance-action reclaim, deadline in 1 min 32 s (exact), first seen 28 s ago, flushed - terminate
Next stop: in 30 s - deadline minus a save
Orders:
  7 flush, 27 s ago, durable - reclaim
Told at a stop: unit spot-train.service
Trainers:
  sweep-01 (pid 42): training, step 1892, 3.21 steps/s
    last save: step 1850, 20 s ago, 4.2 GiB, took 8 s, training stalled 0.4 s, s3://b/run
Work at risk: 13 s
A save is expected to take 9 s"""


def test_the_whole_document_for_people() -> None:
    """Everything a person asks for is there, in this order."""
    assert "\n".join(describe(DOCUMENT, EPOCH)) == TEXT


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"phase": "finished", "exit_code": 0}, "finished, step 1892, left 30 s ago with 0"),
        (
            {"phase": "durable", "exit_code": 75, "fresh": True},
            "durable, step 1892, 3.21 steps/s, left 30 s ago with 75",
        ),
        (
            {"phase": "failed", "exit_code": 76, "error": "boom"},
            "failed, step 1892, left 30 s ago with 76 - boom",
        ),
        ({"phase": "finished", "exit_code": None}, "finished, step 1892, last heard 30 s ago"),
        (
            {"phase": "training", "exit_code": None},
            "training, step 1892, silent for over 15 s: gone or hanging, last heard 30 s ago",
        ),
    ],
)
def test_how_a_trainer_has_left(changes: dict[str, Any], line: str) -> None:
    """One that has said how it ended is not called silent."""
    row = {
        **DOCUMENT["trainers"][0],
        "fresh": False,
        "at": to_rfc3339(EPOCH - timedelta(seconds=30)),
        **changes,
    }
    lines = list(describe({"trainers": [row]}, EPOCH))
    assert f"  sweep-01 (pid 42): {line}" in lines


def test_an_empty_document_is_no_error() -> None:
    """Missing keys are shown as nothing."""
    assert list(describe({}, EPOCH)) == [
        "spotwatch", "Watched: nothing", "Notices in force: none", "Orders: none", "Trainers: none seen",
    ]  # fmt: skip


@pytest.mark.parametrize("foreign", [None, 3, "x\x1b[2J", [], {}, [3], [{}], {"a": 1}, float("nan"), True])
def test_foreign_values_are_survived(foreign: Any) -> None:
    """Whatever a key of the document holds, at any level, nothing fails and no escape sequence gets out."""
    for key in DOCUMENT:
        text = "\n".join(describe({**DOCUMENT, key: foreign}, EPOCH))
        assert "\x1b" not in text
    for section in ("providers", "cases", "orders", "trainers"):
        row = DOCUMENT[section][0]
        row = {**row, "fresh": False, "at": None, "exit_code": None} if section == "trainers" else row
        for key in row:
            text = "\n".join(describe({section: [{**row, key: foreign}]}, EPOCH))
            assert "\x1b" not in text


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Return a function that serves one handler at /status and returns the address."""
    runners: list[web.AppRunner] = []

    async def start(handler: Answer) -> str:
        app = web.Application()
        app.router.add_get("/status", handler)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        return f"http://{host}:{port}"

    yield start
    for runner in runners:
        await runner.cleanup()


async def status(*arguments: str, env: dict[str, str] | None = None) -> Result:
    """Run the command beside the server's loop."""
    clean = {"SPOTWATCH_CONFIG": None, **(env or {})}
    return await asyncio.to_thread(CliRunner().invoke, command, list(arguments), env=clean)


async def test_json_is_the_daemons_document(serve: Serve, tmp_path: Path) -> None:
    """Programs get what the daemon said, through no proxy, with exit status 0."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(DOCUMENT)

    url = await serve(answer)
    proxies = {"http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1"}
    result = await status("--json", "--url", url, "--runtime-dir", str(tmp_path), env=proxies)
    assert (result.exit_code, json.loads(result.stdout)) == (0, DOCUMENT)
    listen = {"SPOTWATCH_HTTP__LISTEN": url.removeprefix("http://")}
    result = await status(env=listen)
    assert result.exit_code == 0, result.output
    assert "spotwatch 0.1.0 on i-0abc" in result.stdout


def closed_port() -> str:
    """Return an address where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize("url", ["hello", "file:///etc/passwd", "http://", "http://x:99999", "http://[", ""])
async def test_an_address_that_is_none_is_refused(url: str, tmp_path: Path) -> None:
    """A slip of the pen is a configuration error, not a daemon that is silent."""
    with lock_runtime_dir(tmp_path):
        result = await status("--url", url, "--runtime-dir", str(tmp_path))
    assert isinstance(result.exception, ConfigError)
    assert "is no address" in str(result.exception)


async def test_files_do_not_answer_for_a_named_address(tmp_path: Path) -> None:
    """Who asks for one daemon is not told of another: exit 1, and the one here is only mentioned."""
    fill(tmp_path)
    with lock_runtime_dir(tmp_path):
        result = await status("--url", closed_port(), "--runtime-dir", str(tmp_path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"One runs on {tmp_path}: leave --url out." in result.stderr


@needs_root
async def test_a_closed_place_is_said(tmp_path: Path) -> None:
    """Whoever may not look is not told that nothing runs."""
    place = tmp_path / "closed" / "run"
    place.mkdir(parents=True)
    fill(place)
    open_to_all(place)
    (tmp_path / "closed").chmod(0o700)
    done = await asyncio.to_thread(run_as_stranger, "status", "--runtime-dir", str(place))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{tmp_path}/closed is closed to uid {STRANGER}" in done.stderr
    (tmp_path / "closed").chmod(0o755)
    (place / "status").chmod(0o700)
    done = await asyncio.to_thread(run_as_stranger, "status", "--runtime-dir", str(place))
    assert f"Refused: {place}/status is closed to uid {STRANGER}" in done.stdout


def test_one_bad_signal_of_several_is_not_silence() -> None:
    """A file that cannot be read leaves the others read and acted on."""
    signals = [{"name": "notices", "state": "ok"}, {"name": "notice_files", "state": "malformed"}]
    row = {"name": "file", "up": False, "signals": signals}
    assert "  file: up in part" in describe({"providers": [row]}, EPOCH)
    row = {"name": "file", "up": False, "signals": signals[1:]}
    assert "  file: not answering" in describe({"providers": [row]}, EPOCH)


async def test_nobody_there(tmp_path: Path) -> None:
    """No HTTP and no lock: exit 1, with what to do, also for programs."""
    result = await status("--url", closed_port(), "--runtime-dir", str(tmp_path))
    assert result.exit_code == 1
    assert "does not answer" in result.stderr
    assert "Start one: spotwatch run" in result.stderr
    assert result.stdout == ""
    result = await status("--json", "--url", closed_port(), "--runtime-dir", str(tmp_path))
    assert result.exit_code == 1
    assert json.loads(result.stdout)["daemon"] is False


def fill(runtime_dir: Path) -> None:
    """Write what a daemon and a trainer leave in a runtime directory, and what an enemy might."""
    for name in ("status", "notices"):
        (runtime_dir / name).mkdir()
    now = datetime.now(UTC)
    order = Order(boot_id="b", seq=7, do=Do.STOP, why="reclaim")
    write_atomically(runtime_dir / "order.json", order.to_bytes())
    (runtime_dir / "draining").touch()
    saved = Saved(step=10, at=now - timedelta(seconds=5), url="file:///c", size_bytes=2048)
    write_status(runtime_dir, Status(run_id="run-1", pid=1, at=now, step=12, saved=saved))
    (runtime_dir / "notices" / "manual.json").write_text('{"do": "stop", "deadline": null, "why": "me"}')
    (runtime_dir / "notices" / "bad.json").write_text("[" * 100_000)
    (runtime_dir / "status" / "bad.json").write_text("{")


async def test_files_speak_when_http_is_off(tmp_path: Path) -> None:
    """A daemon without HTTP is alive by its lock; its files tell order, notices and trainers."""
    fill(tmp_path)
    with lock_runtime_dir(tmp_path):
        result = await status("--runtime-dir", str(tmp_path), env={"SPOTWATCH_HTTP__LISTEN": ""})
    assert result.exit_code == 0, result.output
    assert "http.listen is off" in result.stderr
    for line in (
        "A stop has been ordered on this machine (draining).",
        "  file stop, no deadline - me",
        "  7 stop - reclaim",
        "  run-1 (pid 1): training, step 12",
    ):
        assert line in result.stdout.splitlines()
    assert "last save: step 10" in result.stdout
    assert result.stdout.count("Refused: bad.json") == 2
    assert "Watched: unknown, as no daemon told" in result.stdout


async def hang(_: web.Request) -> web.Response:
    """Answer too late."""
    await asyncio.sleep(60)
    return web.Response()


async def refuse(_: web.Request) -> web.Response:
    """Answer as the daemon does to strangers."""
    raise web.HTTPForbidden


async def page(_: web.Request) -> web.Response:
    """Answer as something else on the port would."""
    return web.Response(text="<html>hello</html>", content_type="text/html")


async def number(_: web.Request) -> web.Response:
    """Answer with JSON that is no document."""
    return web.json_response(3)


async def elsewhere(_: web.Request) -> web.Response:
    """Lead away."""
    raise web.HTTPFound("/metrics")


async def other(_: web.Request) -> web.Response:
    """Answer as the daemon of another directory."""
    return web.json_response({"version": 1, "runtime_dir": "/another"})


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (hang, "does not answer (ReadTimeout)"),
        (refuse, "refuses to tell (HTTP 403)"),
        (page, "not with JSON"),
        (number, "not as spotwatch does"),
        (elsewhere, "answers HTTP 302"),
        (other, "is the daemon on /another"),
    ],
)
async def test_useless_answers_fall_back_to_files(
    handler: Answer, said: str, serve: Serve, tmp_path: Path
) -> None:
    """Whatever listens on the port, the daemon's own files are shown, and why."""
    listen = {"SPOTWATCH_HTTP__LISTEN": (await serve(handler)).removeprefix("http://")}
    with lock_runtime_dir(tmp_path):
        result = await status("--runtime-dir", str(tmp_path), env=listen)
    assert result.exit_code == 0, result.output
    assert said in result.stderr


def test_help_shows_examples_line_by_line() -> None:
    """Nobody reads examples that run into each other."""
    assert "\n  For people:        spotwatch status\n" in CliRunner().invoke(command, ["--help"]).output


async def test_bad_listen_address_is_a_configuration_error(tmp_path: Path) -> None:
    """The key is named."""
    result = await status("--runtime-dir", str(tmp_path), env={"SPOTWATCH_HTTP__LISTEN": "nine"})
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith("http.listen: 'nine' is no address")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (0.42, "0.4 s"), (9.96, "10 s"), (45.4, "45 s"), (60, "1 min"), (92, "1 min 32 s"),
        (3600, "1 h"), (7500, "2 h 5 min"), (90000, "1 d 1 h"), (-3, "0 s"), (59.7, "1 min"),
    ],
)  # fmt: skip
def test_spans(seconds: float, text: str) -> None:
    """Two units at most."""
    assert span(seconds) == text


def test_moments_and_sizes() -> None:
    """Past, future and bytes."""
    assert ago(EPOCH - timedelta(seconds=5), EPOCH) == "5 s ago"
    assert until(EPOCH - timedelta(seconds=90), EPOCH) == "1 min 30 s ago"
    assert until(EPOCH + timedelta(hours=2), EPOCH) == "in 2 h"
    assert [size(n) for n in (0, 1023, 1024, 4.5e9, 3e15)] == [
        "0 B", "1023 B", "1.0 KiB", "4.2 GiB", "2728.5 TiB",
    ]  # fmt: skip
