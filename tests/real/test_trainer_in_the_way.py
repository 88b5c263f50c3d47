# SPDX-License-Identifier: Apache-2.0
"""The trainer's user, who may write to /run/spotwatch, does not keep the daemon from starting ever again."""

from __future__ import annotations

import sys

import pytest

from tests.real.machine import OUR_PROGRAM, Machine
from tests.real.namespace import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(90)]

_WATCH = "spotwatch.service"
_RUN = "/run/spotwatch"
_TRAINER = ("setpriv", "--reuid=games", "--regid=games", "--groups=spotwatch")


@pytest.mark.parametrize(
    "attack",
    [
        "mv status old && ln -s /srv status",
        "mv status old && echo mine > status",
        "mv status old && mkdir -m 0 status",
        "mv notices old && ln -s /etc notices",
        "mv daemon.lock old && mkdir daemon.lock",
        "for i in $(seq 0 99); do : > status.refused-$i; done; mv status old && ln -s /srv status",
        "mv notices old && mkdir -m 2770 notices",
    ],
)
def test_the_daemon_starts_whatever_stands_in_its_place(lasting_machine: Machine, attack: str) -> None:
    """It says what it set aside, watches, and the trainer can report again; nothing behind a link changes."""
    machine = lasting_machine
    _begin(machine)
    kept = machine.check("stat", "--format=%U:%G %a", "/srv", "/etc")
    machine.check(*_TRAINER, "sh", "-c", f"cd {_RUN} && {attack}")

    done = machine.run("systemctl", "restart", _WATCH)
    assert done.returncode == 0, machine.journal(_WATCH)
    wait_until(lambda: "was replaced" in machine.journal(_WATCH), 20, "the line that says so")
    assert machine.show(_WATCH, "ActiveState", "NRestarts") == {"ActiveState": "active", "NRestarts": "0"}
    assert machine.check("stat", "--format=%U:%G %a", "/srv", "/etc") == kept
    for folder in ("status", "notices"):
        assert machine.check("stat", "--format=%U:%G %a", f"{_RUN}/{folder}") == "spotwatch:spotwatch 2770\n"
    machine.check(*_TRAINER, "touch", f"{_RUN}/status/run.json")
    machine.check(sys.executable, "-m", "spotwatch", "trigger", "flush", "--runtime-dir", _RUN)


@pytest.mark.parametrize(
    "attack",
    ["mv notices n3 && mkdir -m 2770 notices", "mv status n3 && ln -s /srv status", "rm daemon.lock"],
)
def test_a_daemon_that_runs_mends_its_place(lasting_machine: Machine, attack: str) -> None:
    """No restart is needed: the folder is the daemon's again, and a second daemon is refused."""
    machine = lasting_machine
    _begin(machine)
    machine.check(*_TRAINER, "sh", "-c", f"cd {_RUN} && {attack}")
    wanted = "spotwatch:spotwatch 2770\n" * 2 + "spotwatch:spotwatch 600\n"
    places = [f"{_RUN}/{name}" for name in ("status", "notices", "daemon.lock")]
    wait_until(lambda: machine.run("stat", "--format=%U:%G %a", *places).stdout == wanted, 20, "all in place")
    machine.check(sys.executable, "-m", "spotwatch", "trigger", "flush", "--runtime-dir", _RUN)
    wait_until(lambda: machine.run("test", "-e", f"{_RUN}/order.json").returncode == 0, 20, "an order")


def test_nobody_of_the_group_can_wait_for_the_lock(lasting_machine: Machine) -> None:
    """Whoever gets it when the daemon ends would keep every later one out; who runs is seen all the same."""
    machine = lasting_machine
    _begin(machine)
    done = machine.run(*_TRAINER, "flock", f"{_RUN}/daemon.lock", "sleep", "60")
    assert "Permission denied" in done.stderr
    pid = machine.show(_WATCH, "MainPID")["MainPID"]
    ask = "from pathlib import Path; from spotwatch.runtime_lock import find_daemon; "
    ask += f"print(find_daemon(Path('{_RUN}')))"
    assert machine.check(*_TRAINER, sys.executable, "-c", ask) == f"{pid}\n"


def _begin(machine: Machine) -> None:
    """Start a daemon in an empty place."""
    machine.run("systemctl", "stop", _WATCH)
    machine.run("rm", "-rf", _RUN)
    machine.install(
        _WATCH, f"[Service]\nEnvironment=SPOTWATCH_PROVIDERS=file SPOTWATCH_TARGET__0__UNIT=x\n{OUR_PROGRAM}"
    )
    machine.check("systemctl", "start", _WATCH)
