# SPDX-License-Identifier: Apache-2.0
"""The daemon's own life on a real systemd: slow starts, hangs, kills, restarts, upgrades within a window."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.real.machine import ROOT
from tests.real.spot_machine import BASH_TRAINER, DRAINING, FLAG, TRAIN, WATCH, SpotMachine

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

_PACKAGE = Path("opt/under-test")
"""Where the package lies that the daemon of the upgrade imports, below the machine's root."""


def test_the_start_returns_once_the_daemon_watches(spot: SpotMachine) -> None:
    """`systemctl start` waits for the daemon's word, and the trainer that comes after it waits too."""
    # The same main process, held up for as long as the test likes.
    held = spot.machine.shared / "held"
    held.touch()
    wait = f"while test -e /shared/{held.name}; do sleep 0.05; done"
    spot.set_up(
        BASH_TRAINER,
        watch=f"ExecStart=\nExecStart=/bin/sh -c '{wait}; exec {sys.executable} -m spotwatch run'\n",
        starts=False,
    )
    with spot.machine.begin("systemctl", "start", WATCH, TRAIN) as start:
        try:
            spot.wait_for(lambda: spot.state(WATCH) == "activating", 10, "the start")
            with pytest.raises(subprocess.TimeoutExpired):
                start.wait(1.5)
            assert spot.state(TRAIN) == "inactive"
        finally:
            held.unlink()
        assert start.wait(30) == 0
    assert spot.state(WATCH) == spot.state(TRAIN) == "active"
    assert spot.status()["orders"] == []


def test_the_directory_is_for_the_daemon_and_the_trainer_alone(spot: SpotMachine) -> None:
    """The trainer may remove the flag in it; nobody else can look inside."""
    spot.set_up(BASH_TRAINER)
    group = ("--groups=spotwatch", "--reuid=trainer", "--regid=trainer")
    stranger = ("--clear-groups", "--reuid=7777", "--regid=7777")
    for who, flag, status in ((group, "-w", 0), (stranger, "-r", 1), (stranger, "-x", 1)):
        done = spot.machine.run("setpriv", *who, "test", flag, "/run/spotwatch")
        assert done.returncode == status, (who, flag)


def _hang(spot: SpotMachine) -> None:
    """Stop the daemon's process, so that it misses systemd's watchdog."""
    spot.machine.check("systemctl", "kill", "--kill-whom=main", "--signal=STOP", WATCH)


def _kill(spot: SpotMachine) -> None:
    spot.machine.check("systemctl", "kill", "--kill-whom=main", "--signal=KILL", WATCH)


@pytest.mark.parametrize("harm", [_hang, _kill], ids=["hangs", "is killed"])
def test_a_daemon_lost_between_notice_and_stop(
    spot: SpotMachine, harm: Callable[[SpotMachine], None]
) -> None:
    """Its successor finds the case and the order in force, asks for no second flush, and stops in time."""
    # Due 14 s after the notice: time for the watchdog, the restart and a slow start.
    spot.set_up(
        BASH_TRAINER,
        settings='providers = ["file"]\n[policy]\nsave_seconds = 1\nstop_margin_seconds = 14.5\n',
        watch="WatchdogSec=2\n",
    )
    spot.spotwatch("trigger", "stop", "--deadline", "30s")
    given_at = time.monotonic()
    spot.wait_for((spot.run_dir / "progress").exists, 10, "the save of a flush")
    spot.wait_for(lambda: not spot.is_there(FLAG), 10, "the trainer's answer")
    (before,) = spot.plans()
    first = spot.main_pid(WATCH)
    harm(spot)
    spot.wait_for(
        lambda: spot.main_pid(WATCH) not in {0, first} and spot.state(WATCH) == "active", 15, "a successor"
    )
    (after,) = spot.plans()
    assert after == before

    spot.wait(TRAIN, "inactive", 30)
    assert time.monotonic() - given_at < 30
    assert spot.machine.show(TRAIN, "ExecMainStatus") == {"ExecMainStatus": "75"}
    assert spot.is_there(DRAINING)
    assert [order["do"] for order in spot.orders()] == ["flush", "stop"]
    assert spot.machine.show(WATCH, "NRestarts") == {"NRestarts": "1"}


def test_restart_and_upgrade_in_a_two_hour_window(spot: SpotMachine) -> None:
    """Training is left alone: the same process, one flush, the stop at the same moment, and a new version."""
    package = spot.machine.kept / _PACKAGE
    _install(package, "1.0.0")
    spot.set_up(BASH_TRAINER, watch=f"Environment=PYTHONPATH=/{_PACKAGE}\n")
    spot.spotwatch("trigger", "stop", "--deadline", "2h")
    spot.wait_for((spot.run_dir / "progress").exists, 10, "the save of a flush")
    spot.wait_for(lambda: spot.orders()[0]["answer"] == "acknowledged", 10, "the trainer's answer")
    before, trainer = spot.status(), spot.main_pid()
    assert before["spotwatch"] == "1.0.0"
    assert before["plan"]["stop"]["at"] is not None

    spot.machine.check("systemctl", "restart", WATCH)
    _compare(before, spot.status())

    # An upgrade takes the old files away under the running daemon, which goes on with what it has.
    shutil.rmtree(package)
    _install(package, "1.0.1")
    assert spot.status()["spotwatch"] == "1.0.0"
    spot.machine.check("systemctl", "restart", WATCH)
    after = spot.status()
    assert after["spotwatch"] == "1.0.1"
    _compare(before, after)

    assert spot.main_pid() == trainer
    assert not spot.is_there(DRAINING)
    assert not spot.is_there(FLAG)
    spot.spotwatch("trigger", "clear")
    spot.wait_for(lambda: spot.status()["cases"] == [], 10, "the end of the case")
    assert spot.main_pid() == trainer


def _install(package: Path, version: str) -> None:
    """Copy our package there, as of that version."""
    shutil.copytree(ROOT / "spotwatch", package / "spotwatch", ignore=shutil.ignore_patterns("__pycache__"))
    init = package / "spotwatch" / "__init__.py"
    text = init.read_text(encoding="utf-8")
    changed = text.replace("__version__ =", f'__version__ = "{version}"\n_WAS =')
    assert changed != text
    init.write_text(changed, encoding="utf-8")


def _compare(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Check that the case, the orders and the planned stop are the same."""
    assert [case["id"] for case in after["cases"]] == [case["id"] for case in before["cases"]]
    assert after["orders"] == before["orders"]
    assert after["plan"]["stop"]["at"] == before["plan"]["stop"]["at"]
