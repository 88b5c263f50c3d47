# SPDX-License-Identifier: Apache-2.0
"""Both units on a real systemd, the real daemon and a trainer in bash: from the notice to the new start."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.real.machine import ROOT, Machine
from tests.real.namespace import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(90)]

_WATCH = "spotwatch.service"
_TRAIN = "spot-train.service"
_DRAINING = "/run/spotwatch/draining"
_FLAG = "/run/spotwatch/checkpoint-now"


@pytest.fixture
def installed(machine: Machine) -> Machine:
    """Give a machine on which both units run: the trainer as `nobody`, the daemon as shipped."""
    page = (ROOT / "docs" / "handshake.md").read_text(encoding="utf-8")
    script = re.search(r"```bash\n(.*?)```", page, re.DOTALL)
    assert script
    (machine.shared / "train.sh").write_text(script[1])
    (machine.shared / "spotwatch.toml").write_text(f'providers = ["file"]\n[[target]]\nunit = "{_TRAIN}"\n')
    machine.install(
        _WATCH,
        "[Service]\nWatchdogSec=3\nEnvironment=SPOTWATCH_CONFIG=/shared/spotwatch.toml\n"
        f"ExecStart=\nExecStart={sys.executable} -m spotwatch run\n",
    )
    machine.install(
        _TRAIN, "[Service]\nUser=nobody\nWorkingDirectory=/shared\nExecStart=\nExecStart=/bin/bash train.sh\n"
    )
    for unit in (_WATCH, _TRAIN):
        done = machine.run("systemctl", "start", unit)
        assert done.returncode == 0, machine.journal(unit)
    return machine


def test_a_notice_goes_through_systemd_and_back(installed: Machine) -> None:
    """Flush, stop, no start while draining even by hand, and the trainer back when it is called off."""
    progress = installed.shared / "progress"
    _spotwatch(installed, "trigger", "flush")
    wait_until(progress.exists, 10, f"the save of a flush\n{installed.journal(_WATCH)}")
    wait_until(lambda: not _is_there(installed, _FLAG), 5, "the flag to be removed by `nobody`")
    _spotwatch(installed, "trigger", "clear")

    _spotwatch(installed, "trigger", "stop")
    wait_until(lambda: _state(installed, _TRAIN) == "inactive", 15, f"a stop\n{installed.journal(_WATCH)}")
    assert installed.show(_TRAIN, "ExecMainStatus") == {"ExecMainStatus": "75"}
    assert _is_there(installed, _DRAINING)
    installed.run("systemctl", "start", _TRAIN)
    assert _state(installed, _TRAIN) == "inactive"

    saved = int(progress.read_text())
    _spotwatch(installed, "trigger", "clear")
    wait_until(lambda: _state(installed, _TRAIN) == "active", 15, f"a start\n{installed.journal(_WATCH)}")
    assert not _is_there(installed, _DRAINING)
    installed.run("systemctl", "stop", _TRAIN)
    assert int(progress.read_text()) >= saved


def test_a_daemon_that_dies_comes_back_to_the_stop_in_force(installed: Machine) -> None:
    """Killed after a stop, systemd starts it again, the order stands, and calling it off still works."""
    _spotwatch(installed, "trigger", "stop")
    wait_until(lambda: _state(installed, _TRAIN) == "inactive", 15, f"a stop\n{installed.journal(_WATCH)}")
    installed.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", _WATCH)
    wait_until(lambda: _restarts(installed) == 1 and _state(installed, _WATCH) == "active", 15, "a restart")
    assert _is_there(installed, _DRAINING)
    _spotwatch(installed, "trigger", "clear")
    wait_until(lambda: _state(installed, _TRAIN) == "active", 20, f"a start\n{installed.journal(_WATCH)}")


def test_a_daemon_that_hangs_is_replaced(installed: Machine) -> None:
    """One that no longer turns misses systemd's watchdog, and the trainer does not notice."""
    before = installed.show(_TRAIN, "MainPID")
    installed.run("systemctl", "kill", "--kill-whom=main", "--signal=STOP", _WATCH)
    wait_until(lambda: _restarts(installed) == 1 and _state(installed, _WATCH) == "active", 30, "a restart")
    assert "Watchdog timeout" in installed.journal(_WATCH)
    assert installed.show(_TRAIN, "MainPID") == before


def test_the_directory_is_shared_with_the_trainer_alone(installed: Machine) -> None:
    """Mode 2770, and the group is the trainer's."""
    done = installed.run("stat", "--format=%a %U", "/run/spotwatch")
    assert done.stdout.strip() == "2770 root"
    assert installed.run("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups",
                         "test", "-w", "/run/spotwatch").returncode == 0  # fmt: skip
    assert installed.run("setpriv", "--reuid=7777", "--regid=7777", "--clear-groups",
                         "test", "-r", "/run/spotwatch").returncode == 1  # fmt: skip


def _spotwatch(machine: Machine, *command: str) -> None:
    done = machine.run(
        "env", "SPOTWATCH_RUNTIME_DIR=/run/spotwatch", sys.executable, "-m", "spotwatch", *command
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _state(machine: Machine, unit: str) -> str:
    return machine.show(unit, "ActiveState")["ActiveState"]


def _restarts(machine: Machine) -> int:
    return int(machine.show(_WATCH, "NRestarts")["NRestarts"])


def _is_there(machine: Machine, path: str) -> bool:
    return machine.run("test", "-e", str(Path(path))).returncode == 0
