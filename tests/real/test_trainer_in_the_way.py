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


@pytest.mark.parametrize(
    "attack",
    [
        "mv status old && ln -s /srv status",
        "mv status old && echo mine > status",
        "mv status old && mkdir -m 0 status",
        "mv notices old && ln -s /etc notices",
        "mv daemon.lock old && mkdir daemon.lock",
    ],
)
def test_the_daemon_starts_whatever_stands_in_its_place(lasting_machine: Machine, attack: str) -> None:
    """It says what it set aside, watches, and the trainer can report again; nothing behind a link changes."""
    machine = lasting_machine
    machine.run("systemctl", "stop", _WATCH)
    machine.run("rm", "-rf", _RUN)
    machine.install(
        _WATCH, f"[Service]\nEnvironment=SPOTWATCH_PROVIDERS=file SPOTWATCH_TARGET__0__UNIT=x\n{OUR_PROGRAM}"
    )
    machine.check("systemctl", "start", _WATCH)
    kept = machine.check("stat", "--format=%U:%G %a", "/srv", "/etc")
    trainer = ("setpriv", "--reuid=games", "--regid=games", "--groups=spotwatch")
    machine.check(*trainer, "sh", "-c", f"cd {_RUN} && {attack}")

    done = machine.run("systemctl", "restart", _WATCH)
    assert done.returncode == 0, machine.journal(_WATCH)
    wait_until(lambda: "was replaced" in machine.journal(_WATCH), 20, "the line that says so")
    assert machine.show(_WATCH, "ActiveState", "NRestarts") == {"ActiveState": "active", "NRestarts": "0"}
    assert machine.check("stat", "--format=%U:%G %a", "/srv", "/etc") == kept
    for folder in ("status", "notices"):
        assert machine.check("stat", "--format=%U:%G %a", f"{_RUN}/{folder}") == "spotwatch:spotwatch 2770\n"
    machine.check(*trainer, "touch", f"{_RUN}/status/run.json")
    machine.check(sys.executable, "-m", "spotwatch", "trigger", "flush", "--runtime-dir", _RUN)
