# SPDX-License-Identifier: Apache-2.0
"""What a mistake in a deployed machine looks like: one line in the journal, one in `check`, and no half work.

The table of docs/virtual-machine.md is read: each of its lines is produced here, and nothing else is in it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.real.conftest import _require
from tests.real.machine import OUR_PROGRAM, POLKIT_RULES, ROOT, Machine
from tests.real.namespace import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

_WATCH = "spotwatch.service"
_TRAIN = "spot-train.service"
_WORK = "/srv/train"
_DROP_IN = "/run/systemd/system/spotwatch.service.d/zz-test.conf"
_TARGET = f'[[target]]\nunit = "{_TRAIN}"\n'
_WEBHOOK = '[webhook]\nlisten = "127.0.0.1:9476"\nsecret_files = ["webhook-secret"]\n'
_HOLD_PORT = "import socket, time; s = socket.create_server(('127.0.0.1', 9475)); time.sleep(600)"
_HOLD_LOCK = (
    "import time; from pathlib import Path; from spotwatch.runtime_lock import lock_runtime_dir; "
    "lock = lock_runtime_dir(Path('/run/spotwatch')); time.sleep(600)"
)


@dataclass(frozen=True, kw_only=True)
class _Mistake:
    """One line of the page's table for which no daemon comes up, and how `check` calls it."""

    settings: str = _TARGET
    """Of the daemon, after the providers."""
    unit: str = ""
    """Further lines of the daemon's [Service]."""
    before: str = ""
    """A command of the shell that makes it."""
    after: str = ""
    """The one that undoes it."""
    name: str = "daemon"
    found: str
    """Words of the line of `check`."""
    mend: str


_REFUSED = {
    "status=203/EXEC": _Mistake(
        unit="ExecStart=\nExecStart=/nowhere/spotwatch run\n",
        found="203/EXEC, its ExecStart= names no program",
        mend="daemon-reload",
    ),
    "status=243/CREDENTIALS": _Mistake(
        unit="LoadCredential=mine:/nowhere/secret\n",
        found="243/CREDENTIALS, the file of a LoadCredential= is not there",
        mend="mend it",
    ),
    "webhook-secret is empty": _Mistake(
        settings=_TARGET + _WEBHOOK, found="webhook-secret is empty", mend="LoadCredential="
    ),
    "another spotwatch daemon": _Mistake(
        before="systemd-run --quiet --property=User=spotwatch --unit=holder "
        f'{sys.executable} -c "{_HOLD_LOCK}"; until grep -qs . /run/spotwatch/daemon.lock; do :; done',
        after="systemctl stop holder",
        found="runs on /run/spotwatch, pid ",
        mend="",
    ),
    "Read-only file system": _Mistake(
        unit="ReadOnlyPaths=/run/spotwatch\n", found="Read-only file system", mend="ReadWritePaths="
    ),
    "is writable by everyone": _Mistake(
        unit="RuntimeDirectoryMode=2777\n",
        name="runtime_dir",
        found="/run/spotwatch is writable by everyone",
        mend="chmod o-w",
    ),
    "may not give /run/spotwatch to its group": _Mistake(
        settings='[flag]\nowner = "games:games"\n' + _TARGET,
        found="may not give /run/spotwatch to its group",
        mend="SupplementaryGroups=",
    ),
    "is a template": _Mistake(
        settings='[[target]]\nunit = "train@.service"\n', name="target", found="is a template", mend="train@1"
    ),
}
# Said by a daemon that comes up all the same: the name of the line in `check`, its words, the remedy's.
_SAID = {
    "is not writable; memory only": ("state_dir", "/etc/nowhere is not writable", "set state_dir"),
    "cannot listen on": ("http", "does not answer", "set http.listen to a free port"),
    "is not-found": ("target", "systemd knows no such unit", "mend target.unit"),
    "is masked": ("target", "systemd never starts it", "systemctl unmask"),
    "are hidden from us": ("daemon.ProtectProc", "no process of another user", "--with processes"),
    "authentication required": ("target", "uthentication required", str(POLKIT_RULES)),
}
_FULL = "No space left on device"
_ALL_AT_ONCE = (
    'state_dir = "/etc/nowhere"\n[[target]]\nunit = "trian.service"\n[[target]]\nunit = "masked.service"\n'
    f'[[target]]\nprocess = "no such trainer"\nuser = "trainer"\n{_TARGET}'
)


@pytest.fixture(scope="module")
def prepared(lasting_machine: Machine) -> Machine:
    """Give a machine with both units, and the trainer of the page on the handshake running."""
    _require("pkcheck", "dbus-daemon", "useradd", "setpriv", "ss")
    machine = lasting_machine
    page = (ROOT / "docs" / "handshake.md").read_text(encoding="utf-8")
    script = re.search(r"```bash\n(.*?)```", page, re.DOTALL)
    assert script
    (machine.shared / "train.sh").write_text(script[1], encoding="utf-8")
    machine.check("useradd", "--system", "trainer")
    machine.install(_WATCH, "")
    machine.install(
        _TRAIN,
        f"[Service]\nWorkingDirectory={_WORK}\nExecStart=\nExecStart=/bin/bash /shared/train.sh\n",
    )
    return machine


class _Scene:
    """The machine, and what its daemon has logged since the scene began."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        machine.prepare()
        machine.run("systemctl", "stop", _WATCH, _TRAIN)
        machine.check(
            "sh",
            "-c",
            f"rm -rf /run/spotwatch /var/lib/spotwatch/* {_WORK}; install -d -o trainer {_WORK}; "
            "install -d -m 2770 -o spotwatch -g spotwatch /run/spotwatch",
        )
        shown = machine.check("journalctl", "--lines=1", "--output=cat", "--show-cursor")
        self._cursor = shown.rpartition("-- cursor: ")[2].strip()

    def begin(self, settings: str, *, unit: str = "") -> None:
        """Start the daemon with `settings`, whether it comes up or not, and then the trainer."""
        toml = f'providers = ["file"]\n{settings}'
        (self.machine.shared / "spotwatch.toml").write_text(toml, encoding="utf-8")
        config = "Environment=SPOTWATCH_CONFIG=/shared/spotwatch.toml\n"
        # It rests long enough to be asked about; the first try is what counts here.
        drop_in = f"[Service]\n{config}RestartSec=60\n{OUR_PROGRAM}{unit}"
        (self.machine.shared / "drop-in").write_text(drop_in, encoding="utf-8")
        self.machine.check("cp", "/shared/drop-in", _DROP_IN)
        self.machine.check("systemctl", "daemon-reload")
        self.machine.run("systemctl", "start", "--no-block", _WATCH)

    def journal(self) -> str:
        """Return what the daemon's unit has logged in this scene."""
        only = f"--after-cursor={self._cursor}"
        return self.machine.run("journalctl", only, "--output=cat", "--no-pager", f"--unit={_WATCH}").stdout

    def wait(self, is_there: Callable[[], bool], what: str) -> None:
        """Wait for a condition; the journal says why it never came."""
        try:
            wait_until(is_there, 30, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.journal()}") from error

    def wait_for(self, words: str) -> None:
        """Wait until the journal has `words`."""
        self.wait(lambda: words in self.journal(), f"{words!r} in the journal")

    def ask(self, user: str = "") -> list[dict[str, Any]]:
        """Return the lines of `sudo spotwatch check`, or of `user`'s."""
        command = [sys.executable, "-m", "spotwatch", "check", "--json"]
        if user:
            command[:0] = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        done = self.machine.run(*command, seconds=40)
        assert done.stdout, done.stderr
        lines: list[dict[str, Any]] = json.loads(done.stdout)["checks"]
        return lines


def _has(lines: list[dict[str, Any]], name: str, found: str, mend: str) -> bool:
    return any(
        line["name"] in (name, "configuration") and found in line["found"] and mend in line["mend"]
        for line in lines
    )


def _table() -> list[str]:
    page = (ROOT / "docs" / "virtual-machine.md").read_text(encoding="utf-8")
    section = re.search(r"(?ms)^## When something is wrong\n(.*?)^## ", page)
    assert section
    return re.findall(r"(?m)^\| `([^`|]+)` \|", section[1])


def test_the_page_tells_of_these_and_no_others() -> None:
    """Each line of the table is produced by a test below."""
    assert sorted(_table()) == sorted([*_REFUSED, *_SAID, _FULL])


@pytest.mark.parametrize("words", _REFUSED)
def test_a_mistake_that_keeps_the_daemon_down_is_named_twice(prepared: Machine, words: str) -> None:
    """The journal has the words of the page, and `check` the reason and the remedy."""
    scene, mistake = _Scene(prepared), _REFUSED[words]
    try:
        if mistake.before:
            prepared.check("sh", "-c", mistake.before)
        scene.begin(mistake.settings, unit=mistake.unit)
        scene.wait_for(words)
        scene.wait(lambda: prepared.show(_WATCH, "SubState")["SubState"] == "auto-restart", "a rest")
        lines = scene.ask()
        assert _has(lines, mistake.name, mistake.found, mistake.mend), lines
    finally:
        if mistake.after:
            prepared.check("sh", "-c", mistake.after)


def test_what_is_in_the_way_is_said_at_the_start_and_the_rest_is_done(prepared: Machine) -> None:
    """Six mistakes and a daemon that comes up: each is said, and at a stop the flag carries what it can."""
    scene = _Scene(prepared)
    masked = "/run/systemd/system/masked.service"
    prepared.check("sh", "-c", f"rm {POLKIT_RULES}; systemctl restart polkit; ln -s /dev/null {masked}")
    holds = f'systemd-run --quiet --unit=holder {sys.executable} -c "{_HOLD_PORT}"'
    prepared.check("sh", "-c", f"{holds}; until ss -ltn | grep -q 9475; do :; done")
    try:
        scene.begin(_ALL_AT_ONCE)
        for words in _SAID:
            scene.wait_for(words)
        prepared.check("systemctl", "start", _TRAIN)
        lines = scene.ask()
        assert [one for one in _SAID.values() if not _has(lines, *one)] == [], lines
        _give_stop(prepared)
        scene.wait(lambda: prepared.run("test", "-e", f"{_WORK}/progress").returncode == 0, "a save")
        scene.wait(
            lambda: prepared.run("test", "-e", "/run/spotwatch/checkpoint-now").returncode == 1, "an ack"
        )
        assert prepared.show(_TRAIN, "ActiveState") == {"ActiveState": "active"}
    finally:
        prepared.run("sh", "-c", f"systemctl stop holder; rm {masked}; systemctl daemon-reload")


def test_one_bad_target_does_not_keep_the_other_from_its_stop(prepared: Machine) -> None:
    """A unit that does not exist fails its own part alone."""
    scene = _Scene(prepared)
    scene.begin('[[target]]\nunit = "trian.service"\n' + _TARGET)
    prepared.check("systemctl", "start", _TRAIN)
    scene.wait_for('"watching"')
    _give_stop(prepared)
    scene.wait(lambda: _has_saved(prepared), "the stop of the other")


def test_a_full_directory_does_not_keep_systemd_from_the_stop(prepared: Machine) -> None:
    """Neither order nor flag can be written: it is said, and the trainer is stopped and saves."""
    scene = _Scene(prepared)
    mount = "mount -t tmpfs -o size=64k full /run/spotwatch"
    prepared.check("sh", "-c", f"{mount}; chown spotwatch: /run/spotwatch; chmod 2770 /run/spotwatch")
    try:
        scene.begin(_TARGET)
        prepared.check("systemctl", "start", _TRAIN)
        scene.wait_for('"watching"')
        prepared.run(
            *("sh", "-c"),
            'cd /run/spotwatch; echo \'{"do": "stop", "deadline": null, "why": "full"}\' > notices/waiting; '
            "cat /dev/zero > fill; mv notices/waiting notices/now.json",
        )
        scene.wait_for(_FULL)
        scene.wait(lambda: _has_saved(prepared), "the stop")
        lines = scene.ask()
        assert _has(lines, "flag.create", _FULL, "make room"), lines
    finally:
        prepared.run("systemctl", "stop", _WATCH, _TRAIN)
        prepared.check("umount", "/run/spotwatch")


def test_a_sound_machine_is_found_sound_and_a_bad_trainer_is_named(prepared: Machine) -> None:
    """Root and the daemon's user see the same, nothing to mend; then the trainer's unit is spoiled twice."""
    scene = _Scene(prepared)
    scene.begin(_TARGET)
    scene.wait_for('"watching"')
    prepared.check("systemctl", "start", _TRAIN)
    for lines in (scene.ask(), scene.ask("spotwatch")):
        rows = {line["name"]: line for line in lines}
        assert [line for line in lines if line["result"] == "fail"] == []
        assert rows["asked as"]["found"] == "spotwatch, who runs spotwatch.service"
        assert rows["flag.remove"]["result"] == "ok"
    assert '"event": "check"' not in scene.journal()

    with _spoiled(prepared, "SupplementaryGroups="):
        prepared.check("systemctl", "restart", _TRAIN)
        lines = scene.ask()
    assert _has(lines, "flag.remove", "could not remove it", "SupplementaryGroups=spotwatch"), lines
    with _spoiled(prepared, "ExecStart=\\nExecStart=/nowhere/python"):
        prepared.run("systemctl", "restart", _TRAIN)
        scene.wait(lambda: prepared.show(_TRAIN, "SubState")["SubState"] == "auto-restart", "a rest")
        lines = scene.ask()
    assert _has(lines, "target", "203/EXEC, its ExecStart= names no program", "daemon-reload"), lines


@contextmanager
def _spoiled(machine: Machine, line: str) -> Iterator[None]:
    path = f"/run/systemd/system/{_TRAIN}.d/zzz.conf"
    machine.check("sh", "-c", f"printf '[Service]\\n{line}\\n' > {path}; systemctl daemon-reload")
    try:
        yield
    finally:
        machine.check("sh", "-c", f"rm {path}; systemctl daemon-reload")


def _give_stop(machine: Machine) -> None:
    machine.check(
        *("env", "SPOTWATCH_RUNTIME_DIR=/run/spotwatch", sys.executable, "-m", "spotwatch", "trigger", "stop")
    )


def _has_saved(machine: Machine) -> bool:
    return machine.show(_TRAIN, "ActiveState", "ExecMainStatus") == {
        "ActiveState": "inactive",
        "ExecMainStatus": "75",
    }
