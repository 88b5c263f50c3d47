# SPDX-License-Identifier: Apache-2.0
"""What would keep a stop from a target is known beforehand, and why a unit does not run is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotwatch.config import TargetSettings
from spotwatch.errors import ActionError
from spotwatch.stopping import foresee
from spotwatch.targets import Target, make_targets
from spotwatch.targets._obstacles import explain_end, load_problem
from spotwatch.targets._systemd import explain_refusal, parse_show
from spotwatch.targets._unit import UnitTarget
from tests.test_targets_unit import RUNNING, Systemd, systemd

__all__ = ["systemd"]

DENIED = "Failed to stop spot-train.service: Interactive authentication required.\nSee system logs."
SENSELESS = {
    "stop": "Failed to stop spot-train.service: Isolate is only valid for start.\nSee system logs.",
    "start": "Failed to start spot-train.service: --job-mode=triggering is only valid for stop.\nSee logs.",
}


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be somebody who has to ask polkit."""
    monkeypatch.setattr(os, "geteuid", lambda: 4711)


def unit(**settings: object) -> Target:
    """Return the target of a unit."""
    (target,) = make_targets((TargetSettings(unit="spot-train", **settings),), None)  # type: ignore[arg-type]
    return target


@pytest.mark.usefixtures("ordinary")
async def test_who_is_allowed_has_nothing_in_the_way(systemd: Systemd) -> None:
    """Both requests are called senseless, as only those are of whom systemd would obey; nothing is queued."""
    for verb, words in SENSELESS.items():
        systemd.refuses(verb, words)
    assert await foresee([unit()]) == []
    own = '["--no-pager", "--no-ask-password", '
    assert systemd.calls()[1:] == [
        own + '"stop", "--no-block", "--job-mode=isolate", "--", "spot-train.service"]',
        own + '"start", "--no-block", "--job-mode=triggering", "--", "spot-train.service"]',
    ]


@pytest.mark.usefixtures("ordinary")
@pytest.mark.parametrize(
    ("verb", "words", "mend"),
    [
        ("stop", DENIED, "name the unit in /etc/polkit-1/rules.d/50-spotwatch.rules"),
        ("start", "Failed to start spot-train.service: Access denied", "or run the daemon as root"),
        ("stop", "Failed to stop x: Unit polkit.service is masked.", "install and start polkit"),
        ("show", "Failed to connect to bus: Connection refused", "start dbus.service, the system bus"),
    ],
)
async def test_who_is_not_allowed_hears_it_before_the_stop(
    systemd: Systemd, verb: str, words: str, mend: str
) -> None:
    """No rule, no polkit, no bus: what systemd says, and what to do about it."""
    for one, text in {**SENSELESS, verb: words}.items():
        systemd.refuses(one, text)
    (problem,) = await foresee([unit()])
    said, _, remedy = problem.partition("; ")
    assert words.splitlines()[0].rstrip(".") in said
    assert mend in remedy


async def test_a_unit_that_only_rests_is_no_obstacle(systemd: Systemd) -> None:
    """At boot the daemon starts before the trainer, and must not complain of that."""
    systemd.says(MainPID=0, ActiveState="inactive", SubState="dead")
    assert await foresee([unit(), unit(leaves="always")]) == []


async def test_one_that_cannot_be_looked_at_takes_nobody_along(systemd: Systemd) -> None:
    """The daemon goes on whatever happens to a look ahead."""
    del systemd

    class Broken(UnitTarget):
        def obstacle(self) -> str:
            raise RecursionError("deep")

    (problem,) = await foresee([Broken("spot-train"), unit()])
    assert problem == "unit spot-train.service: could not be looked at: RecursionError('deep')"


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("loaded", ""),
        ("not-found", "systemd knows no such unit; mend target.unit"),
        ("masked", "systemctl unmask u.service"),
        ("bad-setting", "systemd-analyze verify u.service"),
        ("error", "systemctl status u.service"),
        ("of a later systemd", "systemctl status u.service"),
    ],
)
def test_each_load_state_has_its_remedy(state: str, said: str) -> None:
    """What systemd cannot run it says in a word; what to do is said here."""
    problem = load_problem(parse_show("u.service", f"LoadState={state}\n"))
    assert said in problem
    assert bool(said) is bool(problem)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (203, "203/EXEC, its ExecStart= names no program that can be run; mend it"),
        (200, "200/CHDIR, its WorkingDirectory= is not there"),
        (217, "217/USER, its User= names no user"),
        (226, "226/NAMESPACE, a path of its sandbox is not there"),
        (243, "243/CREDENTIALS, the file of a LoadCredential= is not there"),
        (1, "its last run ended with exit-code, exit status 1"),
    ],
)
def test_the_steps_of_systemd_are_told_in_words(status: int, said: str) -> None:
    """Who sees only a number would look it up in systemd.exec(5)."""
    text = f"Result=exit-code\nExecMainCode=1\nExecMainStatus={status}\n"
    assert said in explain_end(parse_show("u.service", text))
    assert explain_end(parse_show("u.service", RUNNING)) == ""


def test_a_refusal_that_is_unknown_stays_as_it_is() -> None:
    """No remedy is invented."""
    assert explain_refusal("Unit x is not loaded.") == "Unit x is not loaded"


def test_systemctl_has_no_line_to_systemd(systemd: Systemd, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the daemon's own socket each failure of systemctl would be reported in the daemon's name."""
    seen = systemd.folder / "seen"
    (systemd.folder / "systemctl").write_text(f"#!/bin/sh\nenv > {seen}\n")
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    with pytest.raises(ActionError):
        unit().find()
    assert "PATH=" in seen.read_text()
    assert "NOTIFY_SOCKET" not in seen.read_text()


def test_a_unit_of_a_user_is_told_from_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A systemd of theirs has it, and no daemon of the system can stop it."""
    (tmp_path / "u.service").touch()
    monkeypatch.setattr("spotwatch.targets._obstacles._OF_USERS", (str(tmp_path),))
    assert "of a user's own systemd" in load_problem(parse_show("u.service", "LoadState=not-found\n"))
