# SPDX-License-Identifier: Apache-2.0
"""One machine, asked by everybody who may be on it: whatever `check` says is true from where it is asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.real.conftest import _require
from tests.real.machine import OUR_PROGRAM, Machine

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

_WATCH = "spotwatch.service"
_TRAIN = "spot-train.service"
_SCRIPT = "trap 'exit 75' TERM\nwhile :; do sleep 0.2; done\n"
_SETTINGS = f'providers = ["file"]\n[[target]]\nunit = "{_TRAIN}"\n'
_PROCESS = "SPOTWATCH_TARGET__0__PROCESS=sh /shared/train.sh\nSPOTWATCH_TARGET__0__USER=trainer\n"
_OTHERS = ("trainer", "stranger")


@pytest.fixture(scope="module")
def prepared(lasting_machine: Machine) -> Iterator[Machine]:
    """Give a machine with the trainer in the daemon's group, and a user who is in none."""
    _require("pkcheck", "dbus-daemon", "useradd", "setpriv")
    machine = lasting_machine
    machine.install(_WATCH, "")
    for user in _OTHERS:
        machine.check("useradd", "--system", "--user-group", user)
    machine.check("usermod", "--append", "--groups=spotwatch", "trainer")
    (machine.shared / "train.sh").write_text(_SCRIPT, encoding="utf-8")
    machine.install(_TRAIN, "[Service]\nWorkingDirectory=/\nExecStart=\nExecStart=/bin/sh /shared/train.sh\n")
    yield machine
    machine.run("systemctl", "stop", _WATCH, _TRAIN)


def _start(machine: Machine, settings: str, *shipped: str, variables: str = "") -> None:
    (machine.shared / "spotwatch.toml").write_text(settings, encoding="utf-8")
    (machine.shared / "spotwatch.env").write_text(variables, encoding="utf-8")
    lines = "Environment=SPOTWATCH_CONFIG=/shared/spotwatch.toml\nEnvironmentFile=/shared/spotwatch.env\n"
    machine.install(_WATCH, f"[Service]\n{lines}{OUR_PROGRAM}", *shipped)
    machine.check("systemctl", "restart", _WATCH)
    machine.check("systemctl", "start", _TRAIN)


def _ask(machine: Machine, user: str = "", *more: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the verdict and the lines by name, as `user` with all their groups is answered, or root."""
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
    command = [*become, sys.executable, "-P", "-m", "spotwatch", "check", "--json", *more]
    done = machine.run(*command, seconds=40)
    assert done.stdout, done.stderr
    document = json.loads(done.stdout)
    return document["verdict"], {line["name"]: line for line in document["checks"]}


def _failed(lines: dict[str, dict[str, Any]]) -> set[str]:
    return {name for name, line in lines.items() if line["result"] == "fail"}


def test_everybody_is_told_the_truth_of_a_sound_machine(prepared: Machine) -> None:
    """Who is neither root nor the daemon's user learns that it runs, whom to ask, and no bad advice."""
    _start(prepared, _SETTINGS)
    pid = prepared.show(_WATCH, "MainPID")["MainPID"]
    for user in ("", "spotwatch"):
        verdict, lines = _ask(prepared, user)
        assert (verdict, lines["target"]["result"]) == ("ok", "ok"), lines
    for user in _OTHERS:
        verdict, lines = _ask(prepared, user)
        assert (verdict, _failed(lines)) == ("unknown", set()), lines
        assert lines["daemon"]["found"] == f"runs on /run/spotwatch, pid {pid}"
        assert lines["http"]["result"] == "ok"
        assert "spotwatch runs spotwatch.service" in lines["asked as"]["found"]
        assert "sudo spotwatch check" in lines["asked as"]["mend"]
        told = " ".join(line["mend"] for line in lines.values())
        assert [word for word in ("chown", "remove", "/tmp/", "set SPOTWATCH") if word in told] == []
        assert lines.keys() <= {"asked as", "configuration", "cloud", "clock", "daemon", "http", "order"}
    verdict, lines = _ask(prepared, "stranger", "--runtime-dir=/tmp/own", "--provider=file")
    assert (verdict, lines["daemon"]["result"]) == ("ok", "warn"), lines
    assert lines["daemon"]["found"] == "none runs on /tmp/own now"


def test_a_stopped_daemon_is_a_failure_to_everybody(prepared: Machine) -> None:
    """SIGSTOP keeps the lock and the port; to nobody is it a daemon that runs, or a port to be changed."""
    _start(prepared, _SETTINGS)
    pid = prepared.show(_WATCH, "MainPID")["MainPID"]
    prepared.check("kill", "-STOP", pid)
    try:
        for user in ("", "spotwatch", *_OTHERS):
            verdict, lines = _ask(prepared, user)
            assert (verdict, _failed(lines)) == ("fail", {"daemon", "daemon.hangs"}), (user, lines)
            assert f"kill -CONT {pid}" in lines["daemon"]["mend"]
            assert lines["daemon.hangs"]["mend"].startswith("restart it: systemctl restart spotwatch")
    finally:
        prepared.check("kill", "-CONT", pid)


def test_a_blank_in_the_environment_file_is_no_other_setting(prepared: Machine) -> None:
    """It is kept by systemd without quotes; and what CAP_KILL decides, only who has it judges."""
    _start(prepared, 'providers = ["file"]\n', "processes.conf", variables=_PROCESS)
    verdict, lines = _ask(prepared)
    assert (verdict, lines["target"]["result"]) == ("ok", "ok"), lines
    assert lines["asked as"]["result"] == "ok"
    assert "daemon.settings" not in lines
    verdict, lines = _ask(prepared, "spotwatch")
    assert (verdict, _failed(lines), "target" in lines) == ("ok", set(), False), lines
    assert "cap_kill" in lines["asked as"]["found"]


def test_a_daemon_that_is_down_is_down_to_everybody(prepared: Machine) -> None:
    """All of them are told by systemd, with what is to be done."""
    _start(prepared, _SETTINGS)
    prepared.check("systemctl", "stop", _WATCH)
    for user in ("", "spotwatch", *_OTHERS):
        verdict, lines = _ask(prepared, user)
        assert (verdict, _failed(lines)) == ("fail", {"daemon"}), (user, lines)
        assert "does not run, a notice would be missed" in lines["daemon"]["found"]


def test_below_exec_the_answers_are_about_its_own_daemon(prepared: Machine) -> None:
    """Beside the unit, which has the port: the trainer is known, and the pages are not taken for its own."""
    _start(prepared, _SETTINGS)
    ours = [sys.executable, "-P", "-m", "spotwatch"]
    become = ["setpriv", "--reuid=stranger", "--regid=stranger", "--init-groups", "env", "HOME=/tmp"]
    asked = [*ours, "check", "--json", "--provider=file"]
    done = prepared.run(*become, *ours, "exec", "--provider=file", "--", *asked, seconds=40)
    assert done.stdout, done.stderr
    document = json.loads(done.stdout)
    lines = {line["name"]: line for line in document["checks"]}
    assert (document["verdict"], "asked as" in lines) == ("ok", False), lines
    assert lines["target"]["found"].startswith("the command that `spotwatch exec`, pid ")
    assert lines["daemon"]["result"] == "ok"
    assert lines["http"]["found"].startswith("another daemon answers on 127.0.0.1:9475")
    assert "daemon.settings" not in lines
