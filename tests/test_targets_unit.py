# SPDX-License-Identifier: Apache-2.0
"""A trainer that is a systemd unit: what systemd says is read, and its own stop job is asked for.

`systemctl` is played by a small program that answers from a file and writes down how it was called.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwatch.config import TargetSettings
from spotwatch.errors import ActionError, ConfigError
from spotwatch.targets import Restarting, Supervised, Target, is_alive, make_targets, unit_facts
from spotwatch.targets._proc import HIDDEN
from spotwatch.targets._systemd import parse_show, parse_timespan, unit_name
from tests.families import Family, family, wait_for

# `systemctl show` of systemd 252 for a running service; the properties come in its own order.
RUNNING = """\
Type=notify
Restart=on-failure
RestartUSec=5s
TimeoutStopUSec=1min 30s
MainPID=4242
ControlGroup=/system.slice/spot-train.service
User=trainer
Group=
KillMode=mixed
KillSignal=15
SendSIGKILL=yes
LoadState=loaded
ActiveState=active
SubState=running
"""
# The same for a name that no file has; exit status 0 as well.
NOT_FOUND = """\
Type=simple
Restart=no
RestartUSec=100ms
TimeoutStopUSec=1min 30s
MainPID=0
ControlGroup=
User=
Group=
KillMode=control-group
KillSignal=15
SendSIGKILL=yes
LoadState=not-found
ActiveState=inactive
SubState=dead
"""

SYSTEMCTL = """#!{python}
import json, os, sys, time
here = os.path.dirname(os.path.abspath(__file__))
with open(here + "/calls", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
verb = next(a for a in sys.argv[1:] if not a.startswith("-"))
if os.path.exists(here + "/hangs"):
    time.sleep(30)
if os.path.exists(here + "/" + verb + ".error"):
    sys.exit(open(here + "/" + verb + ".error").read())
if verb == "show":
    print(open(here + "/show").read(), end="")
"""


class Systemd:
    """The folder of the program that plays systemctl."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / "systemctl"
        program.write_text(SYSTEMCTL.replace("{python}", sys.executable))
        program.chmod(0o755)
        self.says()

    def says(self, text: str = RUNNING, /, **changes: object) -> None:
        """Answer `show` with `text`, some of its values changed."""
        rows = dict(line.split("=", 1) for line in text.splitlines())
        rows.update({name: str(value) for name, value in changes.items()})
        (self.folder / "show").write_text("".join(f"{k}={v}\n" for k, v in rows.items()))

    def refuses(self, verb: str, words: str) -> None:
        """Fail `verb` with `words`."""
        (self.folder / f"{verb}.error").write_text(words)

    def hangs(self) -> None:
        """Answer nothing any more."""
        (self.folder / "hangs").touch()

    def calls(self) -> list[str]:
        """Return how it was called."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    """Put a systemctl of our own before the system's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return Systemd(folder)


@pytest.fixture
def fam(tmp_path: Path) -> Iterator[Family]:
    """Give the test processes of its own."""
    with family(tmp_path) as one:
        yield one


def target_of(unit: str = "spot-train", **settings: object) -> Target:
    """Return the target that a unit in the configuration makes."""
    (target,) = make_targets((TargetSettings(unit=unit, **settings),), None)  # type: ignore[arg-type]
    return target


def test_facts_are_read_by_name() -> None:
    """Order does not matter, and User= alone has no group."""
    facts = parse_show("spot-train.service", RUNNING)
    assert (facts.main_pid, facts.active_state, facts.sub_state) == (4242, "active", "running")
    assert (facts.kill_mode, facts.kill_signal, facts.send_sigkill) == ("mixed", 15, True)
    assert (facts.timeout_stop_seconds, facts.restart, facts.restart_seconds) == (90.0, "on-failure", 5.0)
    assert (facts.user, facts.group, facts.type) == ("trainer", "", "notify")
    assert facts.control_group == "/system.slice/spot-train.service"


def test_facts_of_an_empty_answer_are_empty() -> None:
    """An old systemd that lacks a property, or says nothing, does no harm."""
    facts = parse_show("x.service", "garbage\nMainPID=abc\nTimeoutStopUSec=soon\n")
    assert (facts.main_pid, facts.load_state, facts.timeout_stop_seconds) == (0, "", None)
    assert facts.kill_signal == 15


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1min 30s", 90.0),
        ("30s", 30.0),
        ("100ms", 0.1),
        ("1h 2min 3s", 3723.0),
        ("2d 1h", 176400.0),
        ("1w", 604800.0),
        ("1month 1y", 34187400.0),
        ("500us", 0.0005),
        ("0", 0.0),
        ("1.5s", 1.5),
        ("infinity", None),
        ("", None),
        ("5 bananas", None),
    ],
)
def test_spans_are_read_as_systemd_writes_them(text: str, seconds: float | None) -> None:
    """Infinity has no number."""
    parsed = parse_timespan(text)
    assert parsed == (seconds if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("spot-train", "spot-train.service"),
        ("spot-train.service", "spot-train.service"),
        ("train@1.service", "train@1.service"),
        ("train@gpu-0", "train@gpu-0.service"),
        (r"a\x2db", r"a\x2db.service"),
    ],
)
def test_names_of_services_are_taken(text: str, name: str) -> None:
    """`.service` may be left out, as for systemctl."""
    assert unit_name(text) == name


@pytest.mark.parametrize(
    "text",
    [
        *("", "-H", "--host=evil", "a b", "a;b", "a*", "[a]", "a/b", "../x", "a\n", "ä", "x" * 256),
        *("spot.timer", "spot.slice", "spot.scope", "train@", "train@.service"),
    ],
)
def test_what_is_no_service_is_refused(text: str) -> None:
    """No option of systemctl, no pattern that fits several, no unit without a main process."""
    with pytest.raises(ConfigError, match=r"target.unit"):
        unit_name(text)


async def test_a_unit_is_stopped_by_systemds_own_job(fam: Family, systemd: Systemd) -> None:
    """We name the processes, for the record; systemd tells them. Nothing of ours is signalled."""
    process = fam.start(fam.trainer(), trainers=1)
    systemd.says(MainPID=process.pid)
    target = target_of()
    assert target.label == "unit spot-train.service"
    procs = target.find()
    assert [proc.pid for proc in procs] == [process.pid]
    assert is_alive(procs[0])
    assert target.owner() == (os.geteuid(), os.getegid())
    assert await target.stop(procs) == "unit spot-train.service: stop queued"
    assert await target.start() == "unit spot-train.service: start queued"
    assert process.poll() is None
    shows = [call for call in systemd.calls() if '"show"' in call]
    assert '"--", "spot-train.service"' in shows[0]
    assert "MainPID" in shows[0]
    own = '["--no-pager", "--no-ask-password", '
    assert systemd.calls()[-2:] == [
        own + '"stop", "--no-block", "--", "spot-train.service"]',
        own + '"start", "--no-block", "--", "spot-train.service"]',
    ]


def test_facts_are_asked_from_systemctl(systemd: Systemd) -> None:
    """`check` reads the unit's limits so."""
    systemd.says(TimeoutStopUSec="infinity", KillMode="control-group")
    facts = unit_facts("spot-train")
    assert (facts.unit, facts.timeout_stop_seconds, facts.kill_mode) == (
        "spot-train.service",
        None,
        "control-group",
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"LoadState": "not-found"}, "is not-found"),
        ({"LoadState": "masked"}, "is masked"),
        ({"MainPID": 0, "ActiveState": "inactive", "SubState": "dead"}, r"it is inactive \(dead\)"),
        ({"MainPID": 0, "ActiveState": "failed", "SubState": "failed"}, r"it is failed \(failed\)"),
        ({"MainPID": 0, "ActiveState": "activating", "SubState": "auto-restart"}, "is restarting"),
        ({"MainPID": 0, "ActiveState": "activating", "SubState": "start-pre"}, r"activating \(start-pre\)"),
        ({"MainPID": 1}, "never told: it is PID 1"),
        ({"MainPID": os.getpid()}, "never told: it is this daemon itself"),
    ],
)
def test_a_unit_that_cannot_be_told_says_why(
    systemd: Systemd, changes: dict[str, object], message: str
) -> None:
    """Missing, restarting, failed, or ours."""
    systemd.says(**changes)
    with pytest.raises(ActionError, match=message):
        target_of().find()


@pytest.mark.parametrize(
    ("changes", "is_down", "is_restarting"),
    [
        ({"MainPID": 0, "ActiveState": "inactive", "SubState": "dead"}, True, False),
        ({"MainPID": 0, "ActiveState": "failed", "SubState": "failed"}, True, False),
        ({"MainPID": 0, "ActiveState": "activating", "SubState": "auto-restart"}, False, True),
        ({"MainPID": 0, "ActiveState": "activating", "SubState": "auto-restart-queued"}, False, True),
        ({"ActiveState": "deactivating", "SubState": "stop-sigterm"}, False, False),
        ({"MainPID": 0, "LoadState": "not-found", "ActiveState": "inactive"}, False, False),
        ({}, False, False),
    ],
)
def test_only_systemds_word_makes_a_unit_down(
    systemd: Systemd, changes: dict[str, object], *, is_down: bool, is_restarting: bool
) -> None:
    """One that saves, restarts, runs or is not known may still have to be waited for."""
    systemd.says(**changes)
    target = target_of()
    assert isinstance(target, Supervised)
    assert isinstance(target, Restarting)
    assert (target.is_down(), target.is_restarting()) == (is_down, is_restarting)
    systemd.refuses("show", "Failed to connect to bus: No such file or directory")
    assert not target.is_down()
    assert not target.is_restarting()


def test_an_unknown_unit_has_no_owner(systemd: Systemd) -> None:
    """Its User= would be systemd's default, not the trainer's."""
    systemd.says(NOT_FOUND)
    assert target_of().owner() is None


@pytest.mark.parametrize(
    ("user", "group", "expected"),
    [
        ("", "", (0, 0)),
        ("root", "", (0, 0)),
        ("0", "0", (0, 0)),
        ("root", "no-such-group", None),
        ("no-such-user", "", None),
    ],
)
def test_the_owner_of_a_unit_at_rest_is_in_its_file(
    systemd: Systemd, user: str, group: str, expected: tuple[int, int] | None
) -> None:
    """The flag can be given to the right user before the trainer has started."""
    systemd.says(MainPID=0, ActiveState="inactive", SubState="dead", User=user, Group=group)
    assert target_of().owner() == expected


def test_a_unit_that_contains_us_is_refused(systemd: Systemd) -> None:
    """Its stop would be ours."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    ours = [line.split(":", 2)[2] for line in lines if line.startswith("0::") or ":name=systemd:" in line]
    if not ours:
        pytest.skip("no cgroups here")
    systemd.says(ControlGroup=ours[0], MainPID=2**22 - 1)
    with pytest.raises(ActionError, match="contains this daemon"):
        target_of().find()


def test_a_main_process_hidden_from_us_can_still_be_stopped(systemd: Systemd) -> None:
    """ProtectProc=invisible hides the trainer from the daemon, not from systemd."""
    systemd.says(MainPID=2**22 - 1, User="root")
    (proc,) = target_of().find()
    assert (proc.pid, proc.start_ticks, proc.uid) == (2**22 - 1, HIDDEN, 0)
    assert not is_alive(proc)


async def test_ranks_can_be_told_directly(fam: Family, systemd: Systemd) -> None:
    """With `leaves = "always"` no stop job is queued: the launcher is left alone."""
    launcher = fam.folder / "mylauncher.py"
    launcher.write_text(
        "import os, subprocess, sys\n"
        "run = [subprocess.Popen(sys.argv[1:], env={**os.environ, 'LOCAL_RANK': str(n)}) for n in range(2)]\n"
        "sys.exit(max(one.wait() for one in run))\n"
    )
    process = fam.start([sys.executable, str(launcher), *fam.trainer()], trainers=2)
    systemd.says(MainPID=process.pid)
    target = target_of(leaves="always")
    procs = target.find()
    assert sorted(fam.ready()) == [proc.pid for proc in procs]
    assert "SIGTERM to pid" in await target.stop(procs)
    assert process.wait() == 75
    assert sorted(fam.told()) == sorted(fam.ready())
    assert not [call for call in systemd.calls() if "stop" in call]


async def test_a_launcher_before_its_ranks_is_stopped_all_the_same(fam: Family, systemd: Systemd) -> None:
    """No ranks are needed by systemd, so their absence is no reason to wait."""
    process = fam.start(["sh", "-c", "sleep 60 & sleep 60"])
    wait_for(lambda: Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().count(" ") == 2)
    systemd.says(MainPID=process.pid)
    assert [proc.pid for proc in target_of().find()] == [process.pid]


async def test_a_refusal_of_systemd_is_passed_on_with_a_mend(fam: Family, systemd: Systemd) -> None:
    """An ordinary user needs a polkit rule."""
    systemd.refuses("stop", "Failed to stop spot-train.service: Access denied\nSee system logs for details.")
    with pytest.raises(ActionError, match=r"Access denied; name the unit in /etc/polkit-1/rules\.d/"):
        await target_of().stop(())
    systemd.refuses("show", "System has not been booted with systemd as init system (PID 1).")
    with pytest.raises(ActionError, match="systemctl show: System has not been booted"):
        target_of().find()
    assert target_of().owner() is None


async def test_a_systemd_that_hangs_holds_nobody_up(
    systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After two seconds the next action takes over."""
    monkeypatch.setattr("spotwatch.targets._systemd.SYSTEMCTL_SECONDS", 0.3)
    systemd.hangs()
    with pytest.raises(ActionError, match=r"no answer within 0.3 s"):
        target_of().find()
    with pytest.raises(ActionError, match=r"no answer within 0.3 s"):
        await target_of().stop(())


def test_a_machine_without_systemd_is_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No systemctl, no unit."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ActionError, match="is this a machine with systemd"):
        target_of().find()
