# SPDX-License-Identifier: Apache-2.0
"""How `exec` ends with trainers that know nothing of the library: terminals, nohup, codes, leftovers."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.e2e.harness import Machine, until

Maker = Callable[[Mapping[str, str]], Machine]
pytestmark = pytest.mark.timeout(60)

# Writes what reaches it into the file named first, and ends with the code named second after SIGTERM.
TRAINER = """
import os, signal, sys, time
out = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
told = []
for signum in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(signum, lambda number, _: told.append(signal.Signals(number).name))
hangup = "ignored" if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else "default"
os.write(out, f"start hangup={hangup}\\n".encode())
while not told:
    time.sleep(0.02)
os.write(out, f"told {told[0]}\\n".encode())
sys.exit(int(sys.argv[2]))
"""

# Is through with its run at the moment of its SIGTERM, as the library would say it.
FINISHING = """
import datetime, os, pathlib, signal, sys, time
from spotwatch import handshake
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
pathlib.Path(sys.argv[1]).write_text("start\\n")
while not told:
    time.sleep(0.02)
now = datetime.datetime.now(datetime.UTC)
saved = handshake.Saved(step=9, at=now, url="file:///x")
status = handshake.Status(run_id="r", pid=os.getpid(), at=now, phase="finished", step=9, saved=saved)
handshake.write_status(pathlib.Path(os.environ["SPOTWATCH_RUNTIME_DIR"]), status)
"""


def command(machine: Machine, *argv: str) -> list[str]:
    """Return the command line of `exec` with this trainer."""
    return [sys.executable, "-m", "spotwatch", "exec", "--provider", "file", "--", *argv]


def trainer(machine: Machine, code: int) -> list[str]:
    """Return the command line of the trainer above."""
    return [sys.executable, "-c", TRAINER, str(machine.trainer_log), str(code)]


async def start(machine: Machine, *argv: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start `exec` and wait until its trainer has begun."""
    with machine.log.open("ab") as log:
        options = {"stderr": log, **options}
        process = subprocess.Popen(  # noqa: ASYNC220 - a few milliseconds, and killed by pid later
            command(machine, *argv), env=machine.environment, **options
        )
    machine.processes.append(process)
    await until(lambda: machine.trainer_lines("start"), 20, "the trainer has begun")
    return process


def put_stop(machine: Machine) -> None:
    """Give a notice by hand."""
    fresh = machine.runtime_dir / "hand"
    fresh.write_text('{"do": "stop", "deadline": null, "why": "a test"}', encoding="ascii")
    fresh.rename(machine.runtime_dir / "notices" / "hand.json")


@pytest.mark.parametrize(("own", "expected"), [(0, 76), (75, 75), (76, 76), (1, 76)])
@pytest.mark.parametrize("way", ["notice", "SIGTERM"])
async def test_a_stop_is_durable_only_if_somebody_says_so(
    make_machine: Maker, own: int, expected: int, way: str
) -> None:
    """A program that ends with 0 after a stop may have saved or not: 76; it says 75 itself if it has."""
    machine = make_machine({"SPOTWATCH_POLICY__DRAIN_SECONDS": "1"})
    process = await start(machine, *trainer(machine, own))
    if way == "notice":
        put_stop(machine)
    else:
        process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 30) == expected
    assert machine.trainer_lines("told") == ["told SIGTERM"]


@pytest.mark.parametrize("way", ["notice", "SIGTERM"])
async def test_a_run_that_finishes_as_the_stop_comes_is_finished(make_machine: Maker, way: str) -> None:
    """0, at once: there is nothing to wait for, nor to be started again, whatever becomes of the stop."""
    machine = make_machine({"SPOTWATCH_POLICY__DRAIN_SECONDS": "1000"})
    process = await start(machine, sys.executable, "-c", FINISHING, str(machine.trainer_log))
    if way == "notice":
        put_stop(machine)
    else:
        process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 20) == 0
    assert machine.ordered() == ["stop"]


async def test_the_answer_is_the_end_of_what_exec_runs(make_machine: Maker) -> None:
    """A shell that does something after the trainer has not left with it."""
    machine = make_machine({"SPOTWATCH_POLICY__DRAIN_SECONDS": "1"})
    line = f"{sys.executable} -c '{TRAINER}' {machine.trainer_log} 0; sleep 1; exit 75"
    process = await start(machine, "sh", "-c", line)
    put_stop(machine)
    assert await asyncio.to_thread(process.wait, 20) == 75
    assert machine.trainer_lines("told") == ["told SIGTERM"]
    events = [row["event"] for row in machine.log_rows()]
    assert events.index("trainer_exited") < events.index("answered")


async def test_a_hangup_stops_with_time_to_save(make_machine: Maker) -> None:
    """It means what SIGTERM means, and reaches the trainer as a stop, not as a hangup that kills it."""
    machine = make_machine({})
    process = await start(machine, *trainer(machine, 75))
    process.send_signal(signal.SIGHUP)
    assert await asyncio.to_thread(process.wait, 30) == 75
    assert machine.trainer_lines("") == ["start hangup=default", "told SIGTERM"]
    assert machine.ordered() == ["stop"]


async def test_under_nohup_a_hangup_changes_nothing(make_machine: Maker) -> None:
    """What was ignored at the start stays ignored, for us and for the trainer; SIGUSR1 is passed on still."""
    machine = make_machine({})
    process = await start(
        machine, *trainer(machine, 0), preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    )
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGUSR1)
    assert await asyncio.to_thread(process.wait, 30) == 0
    assert machine.trainer_lines("") == ["start hangup=ignored", "told SIGUSR1"]
    assert machine.ordered() == []


async def test_a_closed_terminal_stops_with_time_to_save(make_machine: Maker) -> None:
    """The log has nowhere to go any more, and the stop is given all the same."""
    machine = make_machine({})
    terminal, theirs = pty.openpty()
    process = await start(
        machine,
        *trainer(machine, 75),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    os.close(terminal)
    assert await asyncio.to_thread(process.wait, 30) == 75
    assert machine.trainer_lines("told") == ["told SIGTERM"]


async def test_what_daemonises_itself_is_named(make_machine: Maker) -> None:
    """Its parent's end is all that we see: the log says which process is not watched any more."""
    machine = make_machine({})
    line = f"setsid {sys.executable} -c '{TRAINER}' {machine.trainer_log} 0 & exit 0"
    with machine.log.open("ab") as log:
        process = subprocess.Popen(  # noqa: ASYNC220 - a few milliseconds, and killed by pid later
            command(machine, "sh", "-c", line), env=machine.environment, stderr=log
        )
    machine.processes.append(process)
    assert await asyncio.to_thread(process.wait, 30) == 0
    left = [row for row in machine.log_rows() if "keep the trainer in the foreground" in row["event"]]
    assert len(left) == 1
    await until(lambda: machine.trainer_lines("start"), 20, "what was left has begun")
    os.kill(int(left[0]["pid"]), signal.SIGTERM)
    await until(lambda: machine.trainer_lines("told"), 20, "what was left has ended")


async def test_begun_while_a_stop_is_in_force(make_machine: Maker) -> None:
    """The command is not there yet: nothing is tried, nothing fails, and lifting it is called that."""
    machine = make_machine({"SPOTWATCH_POLICY__DRAIN_SECONDS": "1"})
    first = await start(machine, *trainer(machine, 3))
    put_stop(machine)
    assert await asyncio.to_thread(first.wait, 30) == 76
    machine.trainer_log.unlink()
    machine.environment["SPOTWATCH_POLICY__DRAIN_SECONDS"] = "30"
    waiting = asyncio.create_task(start(machine, *trainer(machine, 0)))
    await until(lambda: machine.count_in_log("watching") == 2, 20)
    (machine.runtime_dir / "notices" / "hand.json").unlink()
    second = await waiting
    second.send_signal(signal.SIGUSR1)
    assert await asyncio.to_thread(second.wait, 30) == 0
    acted = [row for row in machine.log_rows() if row["event"] == "acted"]
    assert [row for row in acted if row["result"] != "ok"] == []
    assert {row["case"] for row in acted if row["do"] == "none"} == {"lifted"}
