# SPDX-License-Identifier: Apache-2.0
"""What `spotwatch check` prints and how it exits, beside a real daemon and a real trainer.

What it asks and judges is in tests/checks.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import click
import pytest
from click.testing import CliRunner, Result

from spotwatch.checks.finding import fail, ok, skip, warn
from spotwatch.cli.check import command, describe
from spotwatch.clock import SystemClock
from spotwatch.emulator import Emulator
from spotwatch.handshake import Order
from spotwatch.model import Do
from spotwatch.runtime_lock import lock_runtime_dir
from tests.checks.bench import free_port
from tests.cli.stranger import open_to_all, run_as_stranger
from tests.families import Family, family, needs_root

LINES = [
    ok("configuration", "no file, which is fine"),
    warn("window.gcp", "30 s at least; a save may take 31 s", "save often"),
    fail("target", "none matches", "mend target.process"),
    skip("http", "off"),
]


def invoke(home: Path, *arguments: str, toml: str = "", env: dict[str, str] | None = None) -> Result:
    """Run the command with a configuration of its own."""
    path = home / "spotwatch.toml"
    path.write_text(toml)
    places = ["--runtime-dir", str(home / "run"), "--state-dir", str(home / "state")]
    clean = {"SPOTWATCH_CONFIG": None, "SPOTWATCH_HTTP__LISTEN": "", **(env or {})}
    return CliRunner().invoke(command, ["--config", str(path), *places, *arguments], env=clean)


def test_nothing_wrong_exits_0(tmp_path: Path) -> None:
    """Warnings are worth a look and no failure."""
    result = invoke(tmp_path, "--provider", "file")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1].startswith("Nothing would fail: ")
    assert "warn  daemon" in result.output


def test_something_wrong_exits_1(tmp_path: Path) -> None:
    """One line that fails is enough, and its mend is below it."""
    result = invoke(tmp_path, "--provider", "file", "--process", "no such trainer anywhere")
    assert result.exit_code == 1
    lines = result.output.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("fail  target"))
    assert lines[at + 1].lstrip().startswith("> start the trainer")
    assert lines[-1].startswith("Something would fail: 1 to mend, ")


def test_json_is_one_document(tmp_path: Path) -> None:
    """Programs get name, result, what was found and how to mend it, and the same exit code."""
    result = invoke(tmp_path, "--json", "--provider", "file", "--process", "no such trainer anywhere")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["version"], document["verdict"]) == (1, 1, "fail")
    assert all(set(line) == {"name", "result", "found", "mend"} for line in document["checks"])
    assert {line["result"] for line in document["checks"]} <= {"ok", "warn", "fail", "skip"}
    assert [line["name"] for line in document["checks"] if line["result"] == "fail"] == ["target"]


BROKEN = """
providers = ["azur"]
[policy]
save_secs = 3
safety_factor = 0.5
[[target]]
process = "("
[[target]]
unit = "a"
pidfile = "/b"
[webhook]
listen = "0.0.0.0:9476"
[http]
listen = "nine"
"""


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_refused_configuration_exits_2(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Every problem at once, each on its own line with its key, and nothing else is asked."""
    path = tmp_path / "spotwatch.toml"
    path.write_text(BROKEN)
    result = CliRunner().invoke(command, ["--config", str(path), *arguments])
    assert result.exit_code == 2, result.output
    keys = (
        "providers",
        "policy.save_secs",
        "policy.safety_factor",
        "target.0.process",
        "target.1",
        "webhook",
        "http.listen",
    )
    if arguments:
        found = [line["found"] for line in json.loads(result.stdout)["checks"]]
    else:
        found = [line.split(maxsplit=2)[2] for line in result.output.splitlines() if line.startswith("fail")]
    assert sorted(line.partition(":")[0] for line in found) == sorted(keys)


def test_missing_file_exits_2(tmp_path: Path) -> None:
    """A file that was named and is not there is the first thing to say."""
    result = CliRunner().invoke(command, ["--config", str(tmp_path / "absent.toml")])
    assert result.exit_code == 2
    assert "absent.toml: cannot be read" in result.output


def test_unknown_variable_is_a_warning(tmp_path: Path) -> None:
    """A misspelt variable is told, though the daemon would start."""
    result = invoke(tmp_path, "--provider", "file", env={"SPOTWATCH_STATEDIR": "/x"})
    assert "warn  configuration" in result.output
    assert "SPOTWATCH_STATEDIR: unknown variable" in result.output


def test_lines_stay_in_their_columns() -> None:
    """On a terminal what is long goes on below itself; elsewhere a line is a line."""
    wide = [click.unstyle(line) for line in describe(LINES)]
    assert wide[1:3] == [
        "warn  window.gcp     30 s at least; a save may take 31 s",
        "                   > save often",
    ]
    assert wide[-1] == "Something would fail: 1 to mend, 1 worth a look, 1 fine, 1 not asked."
    narrow = "\n".join(click.unstyle(line) for line in describe(LINES, width=52))
    assert "  30 s at least; a save may take\n                     31 s\n" in narrow


def test_colour_only_on_a_terminal(tmp_path: Path) -> None:
    """A pipe gets no escape sequence, a terminal does."""
    assert "\x1b" not in invoke(tmp_path, "--provider", "file").output
    assert "\x1b[31mfail" in "\n".join(describe(LINES))


@pytest.fixture
def fam(tmp_path: Path) -> Iterator[Family]:
    """Give the test processes of its own."""
    with family(tmp_path) as one:
        yield one


@pytest.fixture
async def cloud() -> AsyncIterator[Emulator]:
    """Give the test a cloud."""
    async with Emulator("aws") as one:
        yield one


async def until_ready(url: str, daemon: subprocess.Popen[bytes]) -> None:
    """Return once the daemon says that it is ready."""
    end = time.monotonic() + 15
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < end and daemon.poll() is None:
            try:
                async with session.get(f"{url}/readyz") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)
    pytest.fail("the daemon did not get ready")


async def run(arguments: list[str], env: dict[str, str]) -> tuple[int, str]:
    """Run a command of the package, and return its exit code and what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "spotwatch", *arguments, env=env, stdout=subprocess.PIPE
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


async def test_beside_a_running_daemon(tmp_path: Path, fam: Family, cloud: Emulator) -> None:
    """All is well with cloud, daemon and trainer; what fails or is gone is said."""
    listen = f"127.0.0.1:{free_port()}"
    fam.start(fam.trainer(), trainers=1)
    env = {
        **os.environ,
        **cloud.environment,
        "SPOTWATCH_HTTP__LISTEN": listen,
        "SPOTWATCH_CONFIG": "",
    }
    shared = ["--provider", "aws", "--process", fam.pattern]
    shared += ["--runtime-dir", str(tmp_path / "run"), "--state-dir", str(tmp_path / "state")]
    daemon = fam.start(
        [sys.executable, "-m", "spotwatch", "run", *shared], env=env, stderr=subprocess.DEVNULL
    )
    await until_ready(f"http://{listen}", daemon)
    code, output = await run(["check", "--json", *shared], env)
    checks = json.loads(output)["checks"]
    assert code == 0, output
    assert [line for line in checks if line["result"] == "warn"] == []
    assert result_of(checks, "daemon") == f"ok runs on {tmp_path / 'run'}, pid {daemon.pid}"
    assert result_of(checks, "http").endswith("serves metrics, and the daemon is ready")
    assert result_of(checks, "flag.seen").startswith("ok the trainer, the daemon and we see the same")
    assert result_of(checks, "identity.aws") == f"ok {cloud.identity}"
    edited = tmp_path / "edited.toml"
    edited.write_text("[policy]\nsave_seconds = 7\n")
    code, output = await run(["check", "--json", "--config", str(edited), *shared], env)
    assert code == 1, output
    assert result_of(json.loads(output)["checks"], "daemon.settings").endswith("than these: policy")
    cloud.fault("500")
    code, output = await run(["check", "--json", *shared], env)
    assert code == 1
    assert result_of(json.loads(output)["checks"], "signal.aws.instance-action").startswith(
        "fail unavailable"
    )
    cloud.heal()
    daemon.send_signal(signal.SIGTERM)
    await asyncio.to_thread(daemon.wait, 10)
    code, output = await run(["check", "--json", *shared], env)
    assert code == 0, output
    assert result_of(json.loads(output)["checks"], "daemon").startswith("warn none runs on")


def result_of(checks: list[dict[str, Any]], name: str) -> str:
    """Return result and finding of the one line of that name."""
    (line,) = [line for line in checks if line["name"] == name]
    return f"{line['result']} {line['found']}"


@needs_root
@pytest.mark.parametrize("closed", [".", "..", "files"])
def test_what_another_user_may_not_see_is_not_to_be_removed(closed: str, tmp_path: Path) -> None:
    """A sound machine, looked at by somebody who may not: sudo is the advice, never to remove anything."""
    run = tmp_path / "place" / "run"
    for name in ("status", "notices"):
        (run / name).mkdir(parents=True)
    order = Order(boot_id=SystemClock().boot_id, seq=7, do=Do.STOP, why="reclaim").to_bytes()
    for name in ("order.json", "draining", "checkpoint-now", "status/run.json"):
        (run / name).write_bytes(order)
        (run / name).chmod(0o600)
    open_to_all(run)
    if closed != "files":
        (run / closed).resolve().chmod(0o700)
    (run / "pid").write_text(str(os.getpid()))
    (run / "pid").chmod(0o600)
    places = ("--runtime-dir", str(run), "--pidfile", str(run / "pid"))
    with lock_runtime_dir(run):
        done = run_as_stranger("check", "--json", "--provider", "file", *places)
    document = json.loads(done.stdout)
    rows = {row["name"]: row for row in document["checks"]}
    assert "Traceback" not in done.stderr
    assert (rows["asked as"]["result"], "spotwatch check" in rows["asked as"]["mend"]) == ("skip", True)
    is_seen = closed == "files"
    assert (rows["daemon"]["result"] == "ok", f"pid {os.getpid()}" in rows["daemon"]["found"]) == (
        is_seen,
    ) * 2
    for name in ("order", "draining" if is_seen else "daemon"):
        assert (rows[name]["result"], "with sudo" in rows[name]["mend"]) == ("skip", True), rows[name]
    told = " ".join(row["found"] + row["mend"] for row in rows.values())
    assert not [word for word in ("remove", "cannot be believed", "is not there", "chown") if word in told]
    assert {row["result"] for row in rows.values()} <= {"ok", "warn", "skip"}
    assert rows.keys() <= {
        "asked as",
        "configuration",
        "cloud",
        "clock",
        "daemon",
        "http",
        "order",
        "draining",
    }
    assert (document["verdict"], done.returncode) == ("unknown", 0)
