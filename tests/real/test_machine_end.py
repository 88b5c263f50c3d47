# SPDX-License-Identifier: Apache-2.0
"""The machine's own end and new start, and stops that are cut short: what of a run outlives them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.real.spot_machine import BASH_TRAINER, DRAINING, TRAIN, WATCH, SpotMachine, number_in

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

# Saves every 10 steps and, told to stop, for some seconds more, with a data worker that it needs for that.
_SLOW = """
import os, pathlib, signal, sys, time

told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(True))
progress = pathlib.Path("progress")

def save(seconds):
    pathlib.Path("progress.new").write_text(str(step))
    time.sleep(seconds)
    os.replace("progress.new", progress)

step = int(progress.read_text()) if progress.exists() else 0
with open("starts", "a") as file:
    file.write(f"{step}\\n")
worker = os.fork()
if worker == 0:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        time.sleep(0.05)
while not told:
    time.sleep(0.05)
    step += 1
    if step % 10 == 0:
        save(0)
step += 1
pathlib.Path("saving").touch()
time.sleep(1)
if os.waitpid(worker, os.WNOHANG)[0]:
    sys.exit(76)
save(2)
os.kill(worker, signal.SIGKILL)
os.waitpid(worker, 0)
sys.exit(75)
"""


@pytest.fixture
def slow(spot: SpotMachine) -> str:
    """Give the command of a trainer whose last save takes three seconds."""
    (spot.machine.shared / "slow.py").write_text(_SLOW, encoding="utf-8")
    return f"{sys.executable} /shared/slow.py"


def _train_for_a_while(spot: SpotMachine) -> None:
    spot.wait_for(lambda: number_in(spot.run_dir / "progress") >= 10, 20, "a save")


def test_a_reboot_ends_the_stop_that_was_in_force(spot: SpotMachine) -> None:
    """The machine is another one then: draining is void, cases are closed, the trainer resumes by itself."""
    spot.set_up(BASH_TRAINER)
    spot.spotwatch("trigger", "stop")
    spot.wait(TRAIN, "inactive", 20)
    assert spot.is_there(DRAINING)
    saved = number_in(spot.run_dir / "progress")
    boot = spot.status()["boot_id"]

    spot.machine.reboot()
    spot.wait(TRAIN, "active", 20)
    spot.wait_for(lambda: spot.state(WATCH) == "active", 20, "the daemon")
    document = spot.status()
    assert document["boot_id"] != boot
    assert (document["cases"], document["draining"]) == ([], False)
    assert not spot.is_there(DRAINING)
    (closed,) = (row["closed"] for row in spot.events() if row["event"] == "other_machine")
    assert closed == ["file:manual"]
    spot.machine.check("systemctl", "stop", TRAIN)
    assert number_in(spot.run_dir / "progress") > saved


@pytest.mark.parametrize("is_root", [False, True], ids=["own users", "root"])
def test_a_shutdown_lets_the_trainer_save_first(spot: SpotMachine, slow: str, *, is_root: bool) -> None:
    """The trainer's save is whole, the daemon leaves after it, and neither keeps the machine from ending."""
    spot.set_up(slow, is_root=is_root)
    _train_for_a_while(spot)
    spot.machine.reboot()
    spot.wait(TRAIN, "active", 20)
    spot.wait_for(lambda: len(_starts(spot.run_dir)) == 2, 20, "the new start")
    before, after = _starts(spot.run_dir)
    assert before == 0
    assert after >= 10
    assert (spot.run_dir / "saving").exists()
    log = spot.machine.check("journalctl", "--no-pager", "--boot=-1", "--output=cat")
    # The daemon is told after the trainer has left, and has nobody to wait for.
    left, told, ended = (
        log.rindex(f"{what} {unit}")
        for what, unit in (("Stopped", TRAIN), ("Stopping", WATCH), ("Stopped", WATCH))
    )
    assert left < told < ended
    # As root it sees that nobody is left. As a user of its own it cannot always be sure so late.
    assert not (is_root and "the machine is shutting down" in log[told:ended])


@pytest.mark.parametrize(
    ("lines", "result", "status"),
    [
        ("", "success", "75"),
        ("TimeoutStopSec=1\n", "timeout", "9"),
        ("KillMode=control-group\n", "exit-code", "76"),
    ],
    ids=["as shipped", "too short", "all are told"],
)
def test_a_stop_that_is_cut_short(spot: SpotMachine, slow: str, lines: str, result: str, status: str) -> None:
    """With another limit or KillMode the last save is lost, and the next start takes the one before it."""
    spot.set_up(slow, train=lines)
    _train_for_a_while(spot)
    spot.spotwatch("trigger", "stop")
    spot.wait_for((spot.run_dir / "saving").exists, 20, "the last save")
    earlier = number_in(spot.run_dir / "progress")
    is_whole = result == "success"
    if is_whole:
        # Whoever still saves has answered nothing, although the daemon may not look at the process.
        assert [order["answer"] for order in spot.orders()] == [None]
    spot.wait_for(lambda: spot.state(TRAIN) in {"inactive", "failed"}, 20, "a stop")
    assert spot.machine.show(TRAIN, "Result", "ExecMainStatus") == {
        "Result": result,
        "ExecMainStatus": status,
    }
    saved = number_in(spot.run_dir / "progress")
    assert (saved > earlier) if is_whole else (saved == earlier)
    spot.spotwatch("trigger", "clear")
    spot.wait(TRAIN, "active", 20)
    spot.wait_for(lambda: _starts(spot.run_dir) == [0, saved], 10, "the new start")


def _starts(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "starts").read_text(encoding="ascii").split()]
