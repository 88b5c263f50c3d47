# SPDX-License-Identifier: Apache-2.0
"""The check looks from where the daemon stands: its user, and the environment that its unit gives.

Becoming that user is tried on a booted systemd, in tests/real.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from spotwatch.checks import Result, refused, take_standpoint
from spotwatch.checks.machine import Machine
from spotwatch.checks.standpoint import Standpoint, find_owner, revise
from spotwatch.clock import SystemClock
from spotwatch.errors import ConfigError
from spotwatch.runtime_lock import lock_runtime_dir
from tests.checks.bench import Bench
from tests.families import needs_root

US = pwd.getpwuid(os.geteuid()).pw_name
UNIT = {"User": US, "RuntimeDirectory": "spotwatch spotwatch/status", "StateDirectory": "spotwatch"}


def test_the_units_environment_is_ours(bench: Bench) -> None:
    """Directories, Environment= and EnvironmentFile= count, and what is set by hand goes before them."""
    path = bench.home / "env"
    path.write_text("# of mine\nSPOTWATCH_LOG__LEVEL='debug'\nSPOTWATCH_PROVIDERS=aws\nP=python train.py\n")
    given = {
        "Environment": '"A=b c" SPOTWATCH_HTTP__LISTEN=',
        "EnvironmentFiles": f"{path} (ignore_errors=yes)",
    }
    bench.systemd({"spotwatch.service": {**UNIT, **given}})
    here = take_standpoint({"SPOTWATCH_PROVIDERS": "file"})
    (line,) = here.findings
    assert here.environ == {
        "RUNTIME_DIRECTORY": "/run/spotwatch",
        "STATE_DIRECTORY": "/var/lib/spotwatch",
        "A": "b c",
        "SPOTWATCH_HTTP__LISTEN": "",
        "SPOTWATCH_LOG__LEVEL": "debug",
        "SPOTWATCH_PROVIDERS": "file",
        "P": "python train.py",
    }
    assert (line.result, line.found) == (Result.OK, f"{US}, who runs spotwatch.service")


@pytest.mark.parametrize(
    ("unit", "environ"),
    [
        (UNIT, {"SPOTWATCH_RUNTIME_DIR": "/tmp/mine"}),
        (UNIT, {"RUNTIME_DIRECTORY": "/run/other"}),
        ({**UNIT, "LoadState": "not-found"}, {}),
        ({**UNIT, "User": "nobody-here"}, {}),
    ],
)
def test_another_daemon_is_left_alone(bench: Bench, unit: dict[str, str], environ: dict[str, str]) -> None:
    """Who names a directory, or has no unit of ours, asks about something else."""
    bench.systemd({"spotwatch.service": unit})
    assert take_standpoint(environ) == Standpoint(environ=environ, is_units=not environ)


@needs_root
def test_who_cannot_become_the_units_user_says_so(bench: Bench) -> None:
    """What root may do says nothing of that user then, and is not asked."""
    bench.systemd({"spotwatch.service": {**UNIT, "User": "nobody"}})
    program = bench.home / "bin" / "setpriv"
    program.write_text("#!/bin/sh\necho 'setpriv: not today' >&2\nexit 1\n")
    program.chmod(0o755)
    here = take_standpoint({})
    (line,) = here.findings
    assert here.is_strange
    assert revise(here, {}, Path("/run/spotwatch")) is here
    assert (line.result, "not today" in line.found) == (Result.SKIP, True)
    assert line.mend == "ask with the command that the unit runs: sudo -u nobody spotwatch check"


async def test_the_groups_are_those_of_who_runs(bench: Bench) -> None:
    """A unit gives its trainer groups that no user database knows of."""
    bench.systemd({"train.service": {"MainPID": 0, "User": US, "SupplementaryGroups": "4711 nogroup-here"}})
    machine = Machine(bench.load('[[target]]\nunit = "train"\n'), SystemClock(), {})
    assert 4711 in await machine.trainer_groups()
    machine.close()


async def test_the_groups_of_a_process_are_read_from_it(bench: Bench) -> None:
    """Where it runs, it is asked itself."""
    bench.family.start(bench.family.trainer(), trainers=1)
    machine = Machine(bench.load(f"[[target]]\nprocess = '{bench.family.pattern}'\n"), SystemClock(), {})
    assert await machine.trainer_groups() == frozenset({os.getegid(), *os.getgroups()})
    machine.close()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_the_units_capabilities_are_missed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is the unit's user, but without what the unit gives, is told to ask as root."""
    monkeypatch.setattr(os, "geteuid", lambda: pwd.getpwnam("nobody").pw_uid)
    bench.systemd({"spotwatch.service": {**UNIT, "User": "nobody", "AmbientCapabilities": "cap_kill"}})
    here = take_standpoint({})
    (line,) = here.findings
    assert here.left_out == {"target", "flag"}
    assert (line.result, "sudo spotwatch check" in line.mend) == (Result.WARN, True)


STRANGER = 12345


@needs_root
@pytest.mark.parametrize(
    "given", [{}, {"SPOTWATCH_RUNTIME_DIR": "/run/spotwatch", "RUNTIME_DIRECTORY": "/run/x"}]
)
def test_who_is_another_user_is_told_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    """With the unit's directory, which a trainer's unit names too; the command for the rest is named."""
    bench.systemd({"spotwatch.service": {**UNIT, "User": "nobody"}})
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    here = take_standpoint(given)
    (line,) = here.findings
    assert (here.is_strange, here.place) == (True, Path("/run/spotwatch"))
    assert here.environ["RUNTIME_DIRECTORY"] == given.get("RUNTIME_DIRECTORY", "/run/spotwatch")
    assert (line.result, line.name) == (Result.SKIP, "asked as")
    assert line.found.startswith(f"uid {STRANGER}, but nobody runs spotwatch.service: ")
    assert "sudo spotwatch check" in line.mend


@needs_root
def test_a_directory_of_ones_own_is_ones_own(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the unit, somebody asks about a daemon of theirs, by a configuration file or by a variable."""
    bench.systemd({"spotwatch.service": {**UNIT, "User": "nobody"}})
    os.chown(bench.runtime_dir, STRANGER, STRANGER)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    own = {"SPOTWATCH_RUNTIME_DIR": str(bench.runtime_dir)}
    assert take_standpoint(own) == Standpoint(environ=own)
    here = take_standpoint({"A": "b"})
    assert here.is_strange
    assert revise(here, {"A": "b"}, bench.runtime_dir) == Standpoint(environ={"A": "b"})
    assert revise(here, {"A": "b"}, Path("/run/spotwatch")) is here


@needs_root
def test_the_owner_of_the_lock_is_the_daemons_user(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod's volume is root's, whoever the daemon is; a directory that no daemon has used is nobody's."""
    lock = bench.runtime_dir / "daemon.lock"
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert find_owner(bench.runtime_dir) is None
    lock.touch()
    os.chown(lock, STRANGER, STRANGER)
    assert find_owner(bench.runtime_dir) is None
    os.chown(lock, STRANGER + 1, STRANGER)
    assert find_owner(bench.runtime_dir) == STRANGER + 1
    there = revise(Standpoint(environ={}), {}, bench.runtime_dir)
    assert (there.is_strange, there.place) == (True, bench.runtime_dir)
    assert find_owner(bench.home / "absent") is None


async def test_the_unit_says_nothing_about_another_daemon(bench: Bench) -> None:
    """Beside a unit, a daemon of one's own is not that one: neither its state nor its /tmp counts."""
    bench.systemd({"spotwatch.service": {**UNIT, "SubState": "dead", "Restart": "no", "PrivateTmp": "yes"}})
    told = [line for line in await bench.check(is_units=False) if line.name.startswith("daemon")]
    assert [(line.name, line.result) for line in told] == [("daemon", Result.WARN)]
    assert told[0].found.startswith("none runs on ")
    told = [line for line in await bench.check() if line.name.startswith("daemon")]
    assert "spotwatch.service is installed but does not run" in " ".join(line.found for line in told)


def test_what_may_not_be_read_names_who_has_to() -> None:
    """Root has asked, and does not see why its own file is denied: the daemon's user is named."""
    denied = ConfigError("/root/my.toml: cannot be read: Permission denied")
    (line,) = refused(denied)
    assert (line.result, f"let user {US}" in line.mend) == (Result.FAIL, True)
    (line,) = refused(denied, is_strange=True)
    assert (line.result, "sudo" in line.mend) == (Result.SKIP, True)


@needs_root
def test_root_does_not_judge_for_another_users_daemon(bench: Bench) -> None:
    """What its own daemon would refuse may be sound for the one that runs; what is left over counts not."""
    with lock_runtime_dir(bench.runtime_dir):
        assert find_owner(bench.runtime_dir) is None
        os.chown(bench.runtime_dir / "daemon.lock", STRANGER, STRANGER)
        assert find_owner(bench.runtime_dir) == STRANGER
        bench.systemd({})
        here = take_standpoint({}, runtime_dir=bench.runtime_dir)
        assert here.is_strange
        assert f"sudo -u '#{STRANGER}' spotwatch check" in here.findings[0].mend
    assert find_owner(bench.runtime_dir) is None
