# SPDX-License-Identifier: Apache-2.0
"""`spotwatch emulate` as a real process: what it prints, serves and how it ends.

What it serves is tested with the emulator.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from click.testing import CliRunner

from spotwatch.cli.emulate import command
from spotwatch.emulator import FAULTS, SCENARIOS
from spotwatch.errors import ConfigError

SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="


class Start(Protocol):
    """Starts the command with these arguments."""

    def __call__(self, *arguments: str) -> subprocess.Popen[str]:
        """Return the running process."""


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `spotwatch emulate`; kill what is left at the end."""
    running: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "spotwatch", "emulate", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.communicate()


def rows_until(
    process: subprocess.Popen[str], is_last: Callable[[dict[str, Any]], bool]
) -> list[dict[str, Any]]:
    """Return the JSON lines up to the one wanted."""
    rows: list[dict[str, Any]] = []
    assert process.stdout is not None
    for line in process.stdout:
        rows.append(json.loads(line))
        if is_last(rows[-1]):
            return rows
    raise AssertionError(f"ended without it: {rows} {process.communicate()[1]}")


def end(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
    """Send the signal; return exit status and standard error."""
    process.send_signal(number)
    _, errors = process.communicate(timeout=10)
    return process.returncode, errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serves_gives_its_notice_and_ends_cleanly(start: Start, number: signal.Signals) -> None:
    """It says where, gives the notice in time, shows each request, and a signal ends it with 0."""
    process = start("gcp", "--notice-after", "0.3s", "--window", "2m", "--log", "json")
    (first,) = rows_until(process, lambda row: row["event"] == "listening")
    host = first["base_url"].removeprefix("http://")
    assert first["environment"] == {"GCE_METADATA_HOST": host}
    assert first["command"] == f"GCE_METADATA_HOST={host} spotwatch run --provider gcp"
    rows = rows_until(process, lambda row: row["event"] == "announced")
    assert (rows[-1]["signal"], rows[-1]["window_seconds"]) == ("preempted", 120)
    request = urllib.request.Request(
        f"{first['base_url']}/computeMetadata/v1/instance/preempted", headers={"Metadata-Flavor": "Google"}
    )
    with urllib.request.urlopen(request, timeout=5) as got:
        assert got.read() == b"TRUE"
    rows = rows_until(process, lambda row: row["event"] == "request")
    assert (rows[-1]["method"], rows[-1]["status"]) == ("GET", 200)
    assert end(process, number) == (0, "")


def test_text_for_people(start: Start) -> None:
    """On a terminal the command to copy stands on a line of its own."""
    process = start("aws", "--notice-after", "0", "--fault", "503:token=2")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(5)]
    assert "FAULT  fault=503  signal=token" in lines[0]
    assert lines[1].startswith("aws is played on http://127.0.0.1:")
    url = lines[1].split()[4].rstrip(";")
    assert lines[2] == f"  AWS_EC2_METADATA_SERVICE_ENDPOINT={url} spotwatch run --provider aws\n"
    assert "SCENARIO  scenario=plain" in lines[3]
    assert "ANNOUNCED  signal=instance-action" in lines[4]
    request = urllib.request.Request(f"{url}/latest/api/token", method="PUT")
    with pytest.raises(urllib.error.HTTPError, match="503") as refused:
        urllib.request.urlopen(request, timeout=5)
    assert refused.value.headers["Retry-After"] == "2"
    refused.value.close()
    assert "PUT  /latest/api/token  503  (503)" in process.stdout.readline()
    assert end(process) == (0, "")


def test_scenarios_in_turn(start: Start) -> None:
    """Several scenarios follow each other, each on a clean stage."""
    process = start(
        "azure", "--scenario", "withdrawn", "--scenario", "plain", "--notice-after", "0", "--window", "0.2",
        "--log", "json", "--fault", "clock-skew=-60",
    )  # fmt: skip
    over = {"event": "scenario over", "scenario": "plain"}
    rows = rows_until(process, lambda row: over.items() <= row.items())
    assert [r["event"] for r in rows] == [
        "fault",
        "listening",
        "scenario",
        "announced",
        "withdrawn",
        "scenario over",
        "withdrawn",
        "healed",
        "fault",
        "scenario",
        "announced",
        "scenario over",
    ]
    assert end(process)[0] == 0


def test_digitalocean_pushes(start: Start, tmp_path: Path) -> None:
    """With a webhook the daemon's settings for it are part of the command; the secret is never shown."""
    secret = tmp_path / "whsec"
    secret.write_text(f"{SECRET}\n")
    hook = "http://127.0.0.1:9/webhook/digitalocean"
    process = start(
        "digitalocean",
        "--webhook",
        hook,
        "--secret-file",
        str(secret),
        "--notice-after",
        "0",
        "--log",
        "json",
    )
    rows = rows_until(process, lambda row: row["event"] == "announced")
    assert rows[0]["environment"]["SPOTWATCH_WEBHOOK__LISTEN"] == "127.0.0.1:9"
    assert rows[0]["environment"]["SPOTWATCH_WEBHOOK__SECRET_FILES"] == str(secret)
    assert SECRET not in json.dumps(rows)
    assert end(process) == (0, "")


def test_digitalocean_without_a_webhook_serves_metadata(start: Start) -> None:
    """Without a webhook there is no notice, and it says so."""
    process = start("digitalocean", "--log", "json")
    rows_until(process, lambda row: row["event"] == "listening")
    status, errors = end(process)
    assert (status, errors) == (0, "no --webhook and --secret-file: metadata only, no notice will come\n")


def test_taken_port_is_a_usage_error(start: Start) -> None:
    """A port in use exits 2 and names the address."""
    first = start("aws", "--log", "json")
    (row,) = rows_until(first, lambda row: row["event"] == "listening")
    port = row["base_url"].rpartition(":")[2]
    second = start("gcp", "--port", port)
    _, errors = second.communicate(timeout=10)
    assert second.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in errors


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], "which cloud? One of aws, gcp, azure, digitalocean."),
        (["hetzner"], "'hetzner' is not one of"),
        (["aws", "--window", "soon"], "'soon' is no duration"),
        (["aws", "--fault", "hang=soon"], "'soon' is no number of seconds"),
        (["digitalocean", "--scenario", "plain"], "give --webhook and --secret-file"),
        (["aws", "--secret-file", "/nonexistent"], "does not exist"),
    ],
)
def test_usage_errors(arguments: list[str], wanted: str) -> None:
    """A wrong command line exits 2 with what is wanted."""
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert wanted in result.output


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["gcp", "--scenario", "hibernate"], "'hibernate' is for aws"),
        (["gcp", "--fault", "418"], "unknown fault '418'"),
        (["gcp", "--fault", "hang:token"], "unknown signal 'token' of gcp"),
    ],
)
def test_refused_before_anything_starts(arguments: list[str], wanted: str) -> None:
    """What the emulator would refuse is a configuration error."""
    result = CliRunner().invoke(command, arguments)
    assert isinstance(result.exception, ConfigError)
    assert wanted in str(result.exception)
    assert "is played on" not in result.output


def test_lists_and_help() -> None:
    """Scenarios and faults are all listed, for one cloud only its own, and the help shows an example."""
    everything = CliRunner().invoke(command, ["--list-scenarios"])
    assert everything.exit_code == 0
    for name in (*SCENARIOS, *FAULTS):
        assert f"  {name} " in everything.output
    of_gcp = CliRunner().invoke(command, ["gcp", "--list-scenarios"]).output
    assert "plain" in of_gcp
    assert "hibernate" not in of_gcp
    assert "spotwatch emulate aws --port 1338" in CliRunner().invoke(command, ["--help"]).output
