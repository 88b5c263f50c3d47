# SPDX-License-Identifier: Apache-2.0
"""The install run again, on machines that are not as the page has them, and removed at a bad moment.

The page itself, from its first command to its last, is test_install's.
"""

from __future__ import annotations

import base64
import re

import pytest

from tests.real.machine import Machine
from tests.real.namespace import wait_until
from tests.real.test_install import _FILL_IN, _INSTALL, _TOML, _TRAIN, _Reader, prepared

# A fixture, found by name in the module that asks for it.
__all__ = ["prepared"]

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]


@pytest.fixture
def reader(prepared: _Reader) -> _Reader:
    """Give a reader on a machine with a fresh install; only the first one fetches packages, 20 s."""
    prepared.type("systemctl disable --now spot-train; systemctl stop mine; rm -rf /run/spotwatch/draining")
    prepared.type(
        "rm -rf /etc/spotwatch /etc/systemd/system/mine.service* /etc/systemd/system/spot-train.service"
    )
    prepared.type("gpasswd --delete games spotwatch; systemctl daemon-reload")
    done = prepared.type(f"{_INSTALL} --unit spot-train --trainer-user trainer --with none")
    assert done.returncode == 0, done.stdout + done.stderr
    return prepared


def test_what_nobody_edited_follows_the_options(reader: _Reader) -> None:
    """The trainer's unit gets another user, the configuration another unit; what was edited stays."""
    machine = reader.machine
    done = reader.type(f"{_INSTALL} --trainer-user games")
    assert done.returncode == 0, done.stderr
    assert "as you made it" not in done.stdout
    assert machine.show("spot-train", "User") == {"User": "games"}
    _make_unit(machine, "mine", "User=games\n")
    pid = machine.show("spotwatch", "MainPID")
    done = reader.type(f"{_INSTALL} --unit mine")
    assert done.returncode == 0, done.stderr
    assert 'unit = "mine.service"' in machine.check("cat", _TOML)
    assert machine.show("spotwatch", "MainPID") != pid
    machine.check("sh", "-c", f"echo '# edited' >> {_TOML}")
    done = reader.type(f"{_INSTALL} --unit spot-train --unit mine")
    assert f"kept {_TOML} as you made it\nit does not name spot-train.service" in done.stdout


def test_an_edited_configuration_is_told_and_applied_by_the_next_run(reader: _Reader) -> None:
    """`check` does not bless a file that the daemon has not read; the install has it read."""
    machine = reader.machine
    assert "daemon.settings" not in reader.type("sudo spotwatch check").stdout
    machine.check("sh", "-c", f"echo '[policy]\nsave_seconds = 7' >> {_TOML}; touch -d '+2 seconds' {_TOML}")
    checked = reader.type("sudo spotwatch check").stdout
    assert re.search(r"fail +daemon\.settings +.*: policy\n.*systemctl restart spotwatch", checked), checked
    pid = machine.show("spotwatch", "MainPID")
    again = reader.type(_INSTALL)
    assert "daemon.settings" not in again.stdout, again.stdout
    assert machine.show("spotwatch", "MainPID") != pid


def test_the_check_knows_what_the_unit_gives(reader: _Reader) -> None:
    """A secret by its credential's name, variables of spotwatch.env, polkit: nothing sound is blamed."""
    machine = reader.machine
    machine.check("sed", "-i", _FILL_IN, _TRAIN)
    machine.check("chown", "trainer", "/srv/train")
    webhook = '[webhook]\nlisten = "127.0.0.1:8475"\nsecret_files = ["webhook-secret"]'
    secret = "whsec_" + base64.b64encode(bytes(range(32))).decode()
    machine.check(
        "sh",
        "-c",
        f"umask 077; echo {secret} > /etc/spotwatch/webhook-secret; echo '{webhook}' >> {_TOML}; "
        "echo SPOTWATCH_PROVIDERS=file > /etc/spotwatch/spotwatch.env; systemctl daemon-reload; "
        "systemctl enable --now spot-train; systemctl restart spotwatch",
    )
    checked = reader.type("sudo spotwatch check").stdout
    assert "\nfail" not in checked, checked
    assert "polkit" not in "".join(re.findall(r"(?m)^warn.*\n.*", checked)), checked
    assert "environment SPOTWATCH_PROVIDERS" in checked, checked


@pytest.mark.parametrize("user", ["5", "4711", ""], ids=["a number", "a number without a name", "dynamic"])
def test_a_unit_whose_user_is_no_plain_name(reader: _Reader, user: str) -> None:
    """A number is looked up, and who cannot be put into the group has it by the unit."""
    line = f"User={user}\n" if user else "DynamicUser=yes\n"
    _make_unit(reader.machine, "mine", line)
    done = reader.type(f"{_INSTALL} --unit mine")
    assert done.returncode == 0, done.stdout + done.stderr
    assert reader.machine.show("spotwatch", "ActiveState") == {"ActiveState": "active"}
    assert ("games" in reader.machine.check("getent", "group", "spotwatch")) == (user == "5")


def test_a_user_that_usermod_does_not_take(reader: _Reader) -> None:
    """As one of LDAP, whom no file here names: said, and the install goes on."""
    _make_unit(reader.machine, "mine", "User=games\n")
    reader.machine.check(
        "sh", "-c", "printf '#!/bin/sh\\nexit 6\\n' > /usr/local/bin/usermod; chmod +x /usr/local/bin/usermod"
    )
    try:
        done = reader.type(f"{_INSTALL} --unit mine")
    finally:
        reader.machine.check("rm", "/usr/local/bin/usermod")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "games is not in the group spotwatch" in done.stdout
    assert reader.machine.show("spotwatch", "ActiveState") == {"ActiveState": "active"}


def test_a_removal_leaves_no_trainer_down_or_failing_in_silence(reader: _Reader) -> None:
    """In a stop it is refused; --force says what stays down; --purge disables a unit that cannot start."""
    machine = reader.machine
    machine.check("sed", "-i", _FILL_IN, _TRAIN)
    machine.check("chown", "trainer", "/srv/train")
    machine.check("systemctl", "daemon-reload")
    machine.check("systemctl", "enable", "--now", "spot-train")
    reader.type("sudo spotwatch trigger stop --why rehearsal")
    wait_until(
        lambda: machine.show("spot-train", "ActiveState") == {"ActiveState": "inactive"},
        40,
        machine.journal("spotwatch"),
    )
    refused = reader.type(f"{_INSTALL} --purge")
    assert (refused.returncode, "a stop is in force" in refused.stderr) == (1, True)
    assert machine.show("spotwatch", "ActiveState") == {"ActiveState": "active"}
    forced = reader.type(f"{_INSTALL} --purge --force")
    assert forced.returncode == 0, forced.stderr
    assert "systemctl start spot-train.service" in forced.stdout
    assert "disabled it, since it cannot start as it is" in forced.stdout
    assert machine.run("systemctl", "is-enabled", "spot-train").stdout == "disabled\n"


def _make_unit(machine: Machine, name: str, lines: str) -> None:
    text = f"[Service]\n{lines}ExecStart=/bin/sleep 900\n"
    (machine.shared / name).write_text(text, encoding="ascii")
    machine.check("cp", f"/shared/{name}", f"/etc/systemd/system/{name}.service")
    machine.check("systemctl", "daemon-reload")
