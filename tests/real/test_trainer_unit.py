# SPDX-License-Identifier: Apache-2.0
"""What systemd makes of spot-train.service: who is signalled, and which ends are followed by a new start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.machine import Machine
from tests.real.namespace import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

_UNIT = "spot-train.service"
_DRAINING = "/run/spotwatch/draining"


def _trainer(script: str) -> str:
    """Return a drop-in that makes the trainer a line of shell."""
    return (
        "[Service]\nUser=nobody\nWorkingDirectory=/shared\nRestartSec=200ms\n"
        f"ExecStart=\nExecStart=/bin/sh -c '{script}'\n"
    )


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def _is_down(machine: Machine) -> bool:
    return machine.show(_UNIT, "ActiveState")["ActiveState"] in {"inactive", "failed"}


@pytest.mark.parametrize(
    ("status", "result"), [(0, "success"), (75, "success"), (77, "exit-code")], ids=["0", "75", "77"]
)
def test_an_end_that_is_meant_is_not_followed_by_a_start(machine: Machine, status: int, result: str) -> None:
    """Finished, stopped and saved, lease lost: the unit stays down, and only the last is shown as failed."""
    machine.install(_UNIT, _trainer(f"echo run >> runs; exit {status}"))
    machine.run("systemctl", "start", _UNIT)
    wait_until(lambda: _is_down(machine) and _lines(machine.shared / "runs") > 0, 5, "the unit to be down")
    facts = machine.show(_UNIT, "Result", "NRestarts", "ExecMainStatus")
    assert facts == {"Result": result, "NRestarts": "0", "ExecMainStatus": str(status)}
    assert _lines(machine.shared / "runs") == 1


@pytest.mark.parametrize("status", [1, 76])
def test_a_crash_or_a_lost_save_is_followed_by_a_start(machine: Machine, status: int) -> None:
    """Work was lost, so the trainer starts again from its last checkpoint."""
    machine.install(_UNIT, _trainer(f"echo run >> runs; exit {status}"))
    machine.run("systemctl", "start", _UNIT)
    wait_until(lambda: _lines(machine.shared / "runs") >= 3, 10, "a third run")


def test_a_draining_machine_starts_no_trainer(machine: Machine) -> None:
    """With a stop in force neither systemd nor a hand brings the trainer back; afterwards a hand does."""
    machine.run("mkdir", "-p", "/run/spotwatch")
    machine.install(_UNIT, _trainer("echo run >> runs; test -e ordered || exit 0; exit 76"))
    (machine.shared / "ordered").touch()
    machine.run("touch", _DRAINING)
    machine.run("systemctl", "start", _UNIT)
    assert machine.show(_UNIT, "ActiveState", "ConditionResult") == {
        "ActiveState": "inactive",
        "ConditionResult": "no",
    }
    machine.run("rm", _DRAINING)
    machine.run("systemctl", "start", _UNIT)
    wait_until(lambda: _lines(machine.shared / "runs") >= 2, 5, "systemd's own restart")
    machine.run("touch", _DRAINING)
    wait_until(lambda: _is_down(machine), 5, "systemd to give up while draining")
    runs = _lines(machine.shared / "runs")
    (machine.shared / "ordered").unlink()
    machine.run("rm", _DRAINING)
    machine.run("systemctl", "start", _UNIT)
    wait_until(lambda: _lines(machine.shared / "runs") == runs + 1, 5, "the start by hand")


def test_only_the_main_process_gets_the_signal(machine: Machine) -> None:
    """A data worker that is told too would die before the save that needs it."""
    (machine.shared / "worker.sh").write_text(
        "trap 'touch worker-was-told' TERM\ntouch worker-is-there\nwhile :; do sleep 0.05; done\n"
    )
    (machine.shared / "main.sh").write_text(
        "sh worker.sh &\ntrap 'sleep 0.5; touch saved; exit 75' TERM\nwhile :; do sleep 0.05; done\n"
    )
    machine.install(_UNIT, _trainer("exec sh main.sh"))
    machine.run("systemctl", "start", _UNIT)
    wait_until((machine.shared / "worker-is-there").exists, 5, "the worker")
    machine.run("systemctl", "stop", _UNIT)
    assert (machine.shared / "saved").exists()
    assert not (machine.shared / "worker-was-told").exists()
    assert machine.show(_UNIT, "Result", "ExecMainStatus") == {"Result": "success", "ExecMainStatus": "75"}
