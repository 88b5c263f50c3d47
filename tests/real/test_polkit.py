# SPDX-License-Identifier: Apache-2.0
"""What polkit lets the daemon's user ask of systemd: two verbs on the listed units, and nothing else."""

from __future__ import annotations

import pytest

from tests.real.conftest import _require
from tests.real.machine import Machine

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

_TRAIN = "spot-train.service"
_OTHER = "spot-train-2.service"
_SLEEPER = "[Service]\nUser=nobody\nWorkingDirectory=/\nExecStart=\nExecStart=/bin/sleep infinity\n"


@pytest.fixture(scope="module")
def booted(lasting_machine: Machine) -> Machine:
    """Give a machine with the rule as shipped and two units that run."""
    _require("pkcheck", "dbus-daemon")
    lasting_machine.install(_TRAIN, _SLEEPER)
    # Not on the list, and otherwise like the first one.
    here, there = f"/run/systemd/system/{_TRAIN}", f"/etc/systemd/system/{_OTHER}"
    lasting_machine.check("install", "-D", here, there)
    lasting_machine.check("cp", "-r", f"{here}.d", f"{there}.d")
    lasting_machine.check("systemctl", "daemon-reload")
    return lasting_machine


@pytest.fixture(autouse=True)
def running(booted: Machine) -> None:
    """Have both units run before each question."""
    booted.check("systemctl", "start", _TRAIN, _OTHER)


def _ask(machine: Machine, user: str, *words: str) -> tuple[int, str]:
    done = machine.run(
        *("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"),
        *("systemctl", "--no-ask-password", *words),
    )
    return done.returncode, done.stderr


def _state(machine: Machine, unit: str) -> str:
    return machine.show(unit, "ActiveState")["ActiveState"]


def test_the_daemons_user_stops_and_starts_the_trainer(booted: Machine) -> None:
    """Both verbs that a reclaim needs, without a password."""
    assert _ask(booted, "spotwatch", "stop", _TRAIN) == (0, "")
    assert _state(booted, _TRAIN) == "inactive"
    assert _ask(booted, "spotwatch", "start", _TRAIN) == (0, "")
    assert _state(booted, _TRAIN) == "active"


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ("spotwatch", ("stop", _OTHER)),
        ("spotwatch", ("restart", _TRAIN)),
        ("spotwatch", ("kill", _TRAIN)),
        ("spotwatch", ("set-property", _TRAIN, "CPUWeight=1")),
        ("spotwatch", ("disable", _TRAIN)),
        ("spotwatch", ("poweroff",)),
        ("games", ("stop", _TRAIN)),
    ],
    ids=lambda words: "-".join(words) if isinstance(words, tuple) else words,
)
def test_everything_else_is_refused(booted: Machine, user: str, words: tuple[str, ...]) -> None:
    """Another unit, another verb, another user: no change, and systemd says that it would have to ask."""
    before = [booted.show(unit, "MainPID", "ActiveState") for unit in (_TRAIN, _OTHER)]
    status, said = _ask(booted, user, *words)
    assert status != 0
    assert "authentication required" in said.lower() or "denied" in said.lower()
    assert [booted.show(unit, "MainPID", "ActiveState") for unit in (_TRAIN, _OTHER)] == before
    assert all(unit["ActiveState"] == "active" for unit in before)


def test_without_the_rule_the_daemons_user_may_do_nothing(booted: Machine) -> None:
    """It is the rule that allows it, not something else on this machine."""
    rule = "/etc/polkit-1/rules.d/50-spotwatch.rules"
    booted.check("mv", rule, "/root/")
    booted.check("systemctl", "restart", "polkit")
    try:
        status, said = _ask(booted, "spotwatch", "stop", _TRAIN)
        assert (status, "authentication required" in said) == (1, True)
    finally:
        booted.check("mv", "/root/50-spotwatch.rules", rule)
        booted.check("systemctl", "restart", "polkit")
