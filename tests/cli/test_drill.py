# SPDX-License-Identifier: Apache-2.0
"""`spotwatch drill` as a real process: its document, its exit codes, and how it ends when told to.

What is rehearsed and how it is judged is tested with `spotwatch.drill`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from spotwatch.cli.drill import command
from spotwatch.errors import ConfigError

pytestmark = pytest.mark.timeout(120)  # a drill of several processes, on cores that others use too

SAVES_NOTHING = """
import pathlib, sys, time
pathlib.Path(sys.argv[1]).touch()
while True:
    time.sleep(1)
"""


def start(tmp_path: Path, *options: str) -> subprocess.Popen[str]:
    """Start a drill of a trainer that saves nothing, with all its scratch places below `tmp_path`."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SAVES_NOTHING), encoding="utf-8")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "spotwatch", "drill", "--cloud", "gcp", "--window", "2", "--notice-after", "1",
         *options, "--", sys.executable, str(script), str(tmp_path / "started")],
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def test_a_document_and_nothing_else(tmp_path: Path) -> None:
    """With --json standard output is one document; a trainer that saves nothing exits 1."""
    out, errors = start(tmp_path, "--json").communicate(timeout=100)
    got = json.loads(out)
    assert errors == ""
    assert (got["version"], got["verdict"]) == (1, "fail")
    (cloud,) = got["clouds"]
    assert (cloud["cloud"], cloud["first_exit_code"], cloud["steps_lost"]) == ("gcp", 143, None)
    assert Path(got["logs"], "gcp-1-daemon.log").exists()


def test_text_in_a_pipe(tmp_path: Path) -> None:
    """The policy, the timeline, the table, the ends of the logs and the verdict, in this order."""
    process = start(tmp_path)
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 1
    wanted = [
        "window 2 s, and in proportion to it: save_seconds = 0.2",
        "an order must be out one interval (gcp 1 s) + 1 s after the notice",
        "notice: this machine goes in 2 s",
        "told to stop",
        "notice to order",
        "--- the end of gcp-1-daemon.log",
        "FAIL: a reclaim on 1 cloud",
    ]
    assert [at for at in map(out.find, wanted) if at < 0] == []
    assert sorted(map(out.find, wanted)) == list(map(out.find, wanted))
    assert "\x1b" not in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_told_to_end(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C and its like leave no process and no file, and exit as the signal does."""
    process = start(tmp_path, "--notice-after", "1h")
    assert process.stdout is not None
    for line in process.stdout:
        if "the daemon watches" in line:
            break
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert errors.startswith("broken off: every process of the drill is killed")
    assert list((tmp_path / "scratch").iterdir()) == []
    assert not [path for path in Path("/proc").glob("[0-9]*/environ") if _mentions(path, tmp_path)]


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch is missing our trainer cannot run: what to install is said, nothing is started."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(command, ["--cloud", "aws"])
    assert isinstance(result.exception, ConfigError)
    assert "pip install 'spotwatch[demo]' torch" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--window", "1s"], "1 s is too short to rehearse aws"),
        (["--window", "5m"], "300 s is more than aws gives"),
        (["--store", "ftp://host/x", "--cloud", "gcp", "--", "true"], "no store for ftp://"),
    ],
)
def test_refused_before_anything_starts(arguments: list[str], wanted: str) -> None:
    """What cannot be rehearsed is a configuration error, which exits 2."""
    result = CliRunner().invoke(command, arguments)
    assert isinstance(result.exception, ConfigError)
    assert wanted in str(result.exception)


def test_a_cloud_that_there_is_not() -> None:
    """An unknown cloud is a usage error that lists those there are."""
    result = CliRunner().invoke(command, ["--cloud", "hetzner"])
    assert result.exit_code == click.UsageError.exit_code
    assert "'aws', 'gcp', 'azure', 'digitalocean', 'all'" in result.output


def test_help_shows_examples() -> None:
    """The help shows how to drill one's own trainer."""
    assert "spotwatch drill --cloud aws" in CliRunner().invoke(command, ["--help"]).output


def _mentions(path: Path, folder: Path) -> bool:
    try:
        return str(folder).encode() in path.read_bytes()
    except OSError:
        return False
