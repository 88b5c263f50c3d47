# SPDX-License-Identifier: Apache-2.0
"""Whether another process is certainly gone: asked of real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spotwatch.train.lease.owner import Owner

from .lease_world import stranger

SCRIPT = """
import json, sys
from dataclasses import asdict
from spotwatch.train.lease.owner import Owner
print(json.dumps(asdict(Owner.here())), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    """Return a process that has said who it is, or will."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def _owner(process: subprocess.Popen[str]) -> Owner:
    import json  # noqa: PLC0415 - as in the script

    assert process.stdout is not None
    return Owner(**json.loads(process.stdout.readline()))


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_live_process_is_not_gone(process: subprocess.Popen[str]) -> None:
    """Neither while it runs nor while it is stopped."""
    other, here = _owner(process), Owner.here()
    assert here.sees(other)
    assert not here.is_in(other)
    assert not here.knows_gone(other)
    process.send_signal(signal.SIGSTOP)
    assert not here.knows_gone(other)


def test_a_killed_process_is_gone_before_and_after_it_was_reaped(process: subprocess.Popen[str]) -> None:
    """A zombie has ended, also when its launcher never asks how."""
    other, here = _owner(process), Owner.here()
    process.kill()
    until = time.monotonic() + 10
    while _state(process.pid) != "Z":
        assert time.monotonic() < until
        time.sleep(0.005)
    assert here.knows_gone(other)
    process.wait()
    assert here.knows_gone(other)


def test_a_pid_that_was_used_again(process: subprocess.Popen[str]) -> None:
    """Another start time is another process, and ours is gone."""
    other = replace(_owner(process), start_ticks=1)
    assert Owner.here().knows_gone(other)


@pytest.mark.parametrize(
    "change",
    [
        {"boot_id": "another"},
        {"pid_namespace": 1},
        {"pid_namespace": 0},
        {"host": "a clone"},
        {"pid": 0},
        {"pid": -1},
        {"pid": 2**40},
    ],
)
def test_out_of_sight_may_live(process: subprocess.Popen[str], change: dict[str, object]) -> None:
    """Of another boot, namespace or machine nothing is known, whatever our own pids say."""
    other = _owner(process)
    process.kill()
    process.wait()
    here = Owner.here()
    assert here.knows_gone(other)
    assert not here.knows_gone(replace(other, **change))  # type: ignore[arg-type]  # a table


def test_unknown_start_time_may_live(process: subprocess.Popen[str]) -> None:
    """A pid that lives and a start time that nobody wrote down: it may be the one."""
    assert not Owner.here().knows_gone(replace(_owner(process), start_ticks=0))


def test_another_users_process_lives(process: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """That we may not signal it does not make it dead."""

    def refuse(pid: int, number: int) -> None:
        raise PermissionError(pid, number)

    monkeypatch.setattr(os, "kill", refuse)
    assert not Owner.here().knows_gone(_owner(process))


def test_this_process_knows_itself() -> None:
    """Two leases of one process have two writers and are one process."""
    one, two = Owner.here(), Owner.here()
    assert one.writer != two.writer
    assert one.is_in(two)
    assert one.pid == os.getpid()
    assert str(os.getpid()) in one.writer
    assert one.pid_namespace > 0
    assert not one.is_in(stranger())
    assert Owner.here("given").writer == "given"
