# SPDX-License-Identifier: Apache-2.0
"""A command that is told to end before it can hear: nothing is started, and it says how it ended."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(180)
_WAIT_SECONDS = 60.0
_TERM = 1 << (signal.SIGTERM - 1)


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a command with a runtime directory of its own, by itself on this machine."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("SPOTWATCH_")}
    ours = {
        "SPOTWATCH_RUNTIME_DIR": str(tmp_path / "run"),
        "SPOTWATCH_STATE_DIR": str(tmp_path / "state"),
        "SPOTWATCH_PROVIDERS": "file",
        "SPOTWATCH_HTTP__LISTEN": "",
        "SPOTWATCH_POLICY__DRAIN_SECONDS": "0",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "spotwatch", *arguments],
        env=environ | ours,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def trainer(tmp_path: Path) -> tuple[str, ...]:
    """Return `exec` with a command that leaves a trace of itself, and would run for long."""
    return "exec", "--", "sh", "-c", f"echo begun > {tmp_path}/begun; exec sleep 600"


def masks(pid: int) -> dict[str, int]:
    """Return which signals a process blocks, catches and has pending."""
    rows = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    pairs = [row.split(":\t") for row in rows if row.startswith(("Sig", "ShdPnd"))]
    return {name: int(value, 16) for name, value in pairs if name != "SigQ"}


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + _WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.001)


@pytest.mark.parametrize("command", ["run", "exec", "relay"])
def test_kept_while_the_command_is_loaded(tmp_path: Path, command: str) -> None:
    """Sent while it is held back, it is pending and ends the command once it can be heard."""
    process = start(tmp_path, *(trainer(tmp_path) if command == "exec" else (command,)))
    wait_until(lambda: process.poll() is not None or masks(process.pid)["SigBlk"] & _TERM)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=_WAIT_SECONDS)
    # A relay without configuration refuses, which is none of this test's concern; it was not killed.
    assert process.returncode == {"run": 0, "exec": 76, "relay": 2}[command], output
    assert not (tmp_path / "begun").exists()


def test_trainer_has_no_signal_held_back(tmp_path: Path) -> None:
    """Else none of ours would reach it."""
    process = start(tmp_path, *trainer(tmp_path))
    wait_until((tmp_path / "begun").exists)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
    assert [masks(int(child))["SigBlk"] for child in children] == [0]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=_WAIT_SECONDS)
    assert process.returncode == 76


@pytest.mark.parametrize("seed", range(6))
def test_told_at_any_moment_of_the_start(tmp_path: Path, seed: int) -> None:
    """Early or late, it ends, and so does what it may have started."""
    process = start(tmp_path, *trainer(tmp_path))
    time.sleep(random.Random(seed).uniform(0, 1.5))
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=_WAIT_SECONDS)
    # In the first moments, while Python itself starts, the kernel's own answer.
    assert process.returncode in (76, -signal.SIGTERM), output


def test_other_commands_die_of_it(tmp_path: Path) -> None:
    """One that hears nothing holds nothing back."""
    process = start(tmp_path, "emulate", "aws", "--port", "0", "--help")
    process.communicate(timeout=_WAIT_SECONDS)
    assert process.returncode == 0
    process = start(tmp_path, "drill", "--cloud", "aws")
    wait_until(lambda: masks(process.pid)["SigCgt"])
    assert not masks(process.pid)["SigBlk"] & _TERM
    process.kill()
    process.communicate(timeout=_WAIT_SECONDS)
