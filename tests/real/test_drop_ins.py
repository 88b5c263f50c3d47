# SPDX-License-Identifier: Apache-2.0
"""The shipped drop-ins on a real systemd: each lets the daemon do what it is for, without being root."""

from __future__ import annotations

import base64
import re
import sys
from dataclasses import dataclass

import pytest

from tests.real.conftest import _require
from tests.real.machine import OUR_PROGRAM, ROOT, Machine
from tests.real.namespace import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

_WATCH = "spotwatch.service"
_TRAIN = "spot-train.service"
_WORK = "/srv/train"
_PIDFILE = f"{_WORK}/pid"
_COMMAND = f"/bin/sh -c 'echo $$$$ > {_PIDFILE}; exec /bin/bash /shared/train.sh'"


@dataclass(frozen=True, kw_only=True)
class _Way:
    """A way to run the daemon: what is added to its unit, and what the configuration asks for."""

    drop_ins: tuple[str, ...]
    target: str
    flag: str = "/run/spotwatch/checkpoint-now"
    user: str = "spotwatch"


_WAYS = {
    "pidfile": _Way(drop_ins=("processes.conf",), target=f'pidfile = "{_PIDFILE}"\nuser = "trainer"'),
    "process": _Way(drop_ins=("processes.conf",), target='process = "train.sh"\nuser = "trainer"'),
    "tmp": _Way(drop_ins=("tmp-flag.conf",), target=f'unit = "{_TRAIN}"', flag="/tmp/checkpoint-now"),
    "both": _Way(
        drop_ins=("processes.conf", "tmp-flag.conf"),
        target='process = "train.sh"\nuser = "trainer"',
        flag="/tmp/checkpoint-now",
    ),
    "root": _Way(
        drop_ins=("as-root.conf",),
        target=f'pidfile = "{_PIDFILE}"',
        flag="/tmp/checkpoint-now",
        user="root",
    ),
}


@pytest.fixture(scope="module")
def prepared(lasting_machine: Machine) -> Machine:
    """Give a machine with a trainer's user, its place, and the script from the page on the handshake."""
    _require("pkcheck", "dbus-daemon", "useradd")
    page = (ROOT / "docs" / "handshake.md").read_text(encoding="utf-8")
    script = re.search(r"```bash\n(.*?)```", page, re.DOTALL)
    assert script
    (lasting_machine.shared / "train.sh").write_text(script[1], encoding="utf-8")
    lasting_machine.check("useradd", "--system", "trainer")
    return lasting_machine


def _set_up(machine: Machine, way: _Way) -> None:
    machine.run("systemctl", "stop", _WATCH, _TRAIN)
    # The daemon would go on with the stop of the test before.
    machine.check("rm", "-rf", _WORK, "/run/spotwatch", "/var/lib/spotwatch", "/tmp/checkpoint-now")
    machine.check("install", "-d", "-o", "trainer", _WORK)
    (machine.shared / "spotwatch.toml").write_text(
        f'providers = ["file"]\n[flag]\npath = "{way.flag}"\n[[target]]\n{way.target}\n', encoding="utf-8"
    )
    machine.check("rm", "-rf", f"/run/systemd/system/{_WATCH}.d")
    machine.install(
        _WATCH,
        f"[Service]\nEnvironment=SPOTWATCH_CONFIG=/shared/spotwatch.toml\n{OUR_PROGRAM}",
        *way.drop_ins,
    )
    # The script looks for the flag in what it takes for the runtime directory.
    machine.install(
        _TRAIN,
        f"[Service]\nWorkingDirectory={_WORK}\nEnvironment=SPOTWATCH_RUNTIME_DIR={way.flag.rpartition('/')[0]}\n"
        f"ExecStart=\nExecStart={_COMMAND}\n",
    )
    for unit in (_TRAIN, _WATCH):
        done = machine.run("systemctl", "start", unit)
        assert done.returncode == 0, machine.journal(unit)
    # What has not begun is not found, and a flag for nobody is the daemon's own.
    began = ("pgrep", "--full", "^/bin/bash /shared/train.sh")
    wait_until(lambda: machine.run(*began).returncode == 0, 20, machine.journal(_TRAIN))


def _trigger(machine: Machine, *words: str) -> None:
    machine.check(
        "env", "SPOTWATCH_RUNTIME_DIR=/run/spotwatch", sys.executable, "-m", "spotwatch", "trigger", *words
    )


@pytest.mark.parametrize("name", _WAYS)
def test_the_daemon_reaches_the_trainer(prepared: Machine, name: str) -> None:
    """The flag appears where it was asked for, the trainer's user can remove it, and a stop reaches it."""
    machine, way = prepared, _WAYS[name]
    _set_up(machine, way)
    assert machine.show(_WATCH, "User") == {"User": way.user}
    machine.check("systemctl", "kill", "--kill-whom=main", "--signal=STOP", _TRAIN)
    _trigger(machine, "flush")
    wait_until(lambda: machine.run("test", "-e", way.flag).returncode == 0, 20, machine.journal(_WATCH))
    if way.flag.startswith("/tmp/"):
        assert machine.check("stat", "--format=%U", way.flag) == "trainer\n"
    machine.check("systemctl", "kill", "--kill-whom=main", "--signal=CONT", _TRAIN)
    wait_until(lambda: machine.run("test", "-e", way.flag).returncode == 1, 20, machine.journal(_WATCH))

    _trigger(machine, "clear")
    _trigger(machine, "stop")
    wait_until(
        lambda: (
            machine.show(_TRAIN, "ActiveState", "ExecMainStatus")
            == {"ActiveState": "inactive", "ExecMainStatus": "75"}
        ),
        20,
        machine.journal(_WATCH),
    )


def test_without_the_drop_in_the_process_is_not_reached(prepared: Machine) -> None:
    """It is the drop-in that lets the daemon signal others: as shipped it sees no process of theirs."""
    machine = prepared
    _set_up(machine, _Way(drop_ins=(), target=_WAYS["process"].target))
    before = machine.show(_TRAIN, "MainPID")
    _trigger(machine, "stop")
    wait_until(lambda: '"result": "failed"' in machine.journal(_WATCH), 20, "a stop that fails")
    assert machine.show(_TRAIN, "MainPID") == before


_HOOK = """for place in /run/spotwatch /var/lib/spotwatch /tmp /etc /usr /srv; do
  if echo > "$place/hook-was-here"; then echo "writes $place"; fi
done
chmod 4755 /run/spotwatch/hook-was-here || echo "no setuid"
systemctl --no-ask-password stop dbus || echo "no other unit"
id -un
"""


def test_a_hook_has_the_daemon_s_sandbox(prepared: Machine) -> None:
    """It writes where the daemon does, makes no program that runs as another, and stops no other unit."""
    machine, result = prepared, "/run/spotwatch/hook-result"
    _set_up(machine, _Way(drop_ins=(), target=f'unit = "{_TRAIN}"'))
    (machine.shared / "hook.sh").write_text(_HOOK, encoding="ascii")
    with (machine.shared / "spotwatch.toml").open("a", encoding="utf-8") as file:
        command = f"sh /shared/hook.sh > {result}.new 2> /dev/null; mv {result}.new {result}"
        file.write(f"[hook]\non_notice = ['/bin/sh', '-c', '{command}']\n")
    assert machine.run("systemctl", "restart", _WATCH).returncode == 0, machine.journal(_WATCH)
    _trigger(machine, "flush")
    wait_until(lambda: machine.run("test", "-e", result).returncode == 0, 20, machine.journal(_WATCH))
    assert machine.check("cat", result).splitlines() == [
        "writes /run/spotwatch",
        "writes /var/lib/spotwatch",
        "writes /tmp",
        "no setuid",
        "no other unit",
        "spotwatch",
    ]


def test_a_secret_is_root_s_and_reaches_the_daemon_by_name(prepared: Machine) -> None:
    """With the file there the webhook listens; without it the daemon says which secret is empty."""
    machine, secret = prepared, "/etc/spotwatch/webhook-secret"
    _set_up(machine, _Way(drop_ins=(), target=f'unit = "{_TRAIN}"'))
    with (machine.shared / "spotwatch.toml").open("a", encoding="utf-8") as file:
        file.write('[webhook]\nlisten = "127.0.0.1:9476"\nsecret_files = ["webhook-secret"]\n')
    machine.run("systemctl", "restart", "--no-block", _WATCH)
    wait_until(lambda: "webhook-secret is empty" in machine.journal(_WATCH), 20, machine.journal(_WATCH))

    text = "whsec_" + base64.b64encode(bytes(range(32))).decode()
    (machine.shared / "secret").write_text(text, encoding="ascii")
    machine.check("install", "-D", "--mode=600", "/shared/secret", secret)
    try:
        assert machine.run("systemctl", "restart", _WATCH, seconds=40).returncode == 0, machine.journal(
            _WATCH
        )
        connect = "import socket; socket.create_connection(('127.0.0.1', 9476), 5).close()"
        machine.check(sys.executable, "-c", connect)
        assert text not in machine.journal(_WATCH)
    finally:
        machine.check("rm", secret)
