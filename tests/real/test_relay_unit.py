# SPDX-License-Identifier: Apache-2.0
"""The relay's unit on a real systemd, with its sandbox: it hears a notice, writes it, and outlives a kill."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spotwatch.mail.mailbox import Address
from spotwatch.mail.mailbox_keys import SigningKey
from spotwatch.open_files import WANTED
from spotwatch.webhooks import signed_headers
from tests.mail.letters import OURS
from tests.real.machine import UNITS, Machine
from tests.real.namespace import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

_CHECKOUT = Path(__file__).parents[2]
_UNIT = "spotwatch-relay.service"
_SECRET = bytes(range(32))
_LETTER = f"/var/lib/spotwatch-relay/box/{Address(OURS).key}"


@pytest.fixture
def installed(machine: Machine) -> Machine:
    """Give a machine on which the unit runs as shipped, but for where the program and the secrets are."""
    shared = machine.shared
    (shared / "relay-key").write_text(SigningKey.make().secret_text)
    (shared / "webhook-secret").write_text("whsec_" + base64.b64encode(_SECRET).decode())
    (shared / "relay.toml").write_text(
        "[http]\nlisten = '127.0.0.1:9475'\n"
        "[webhook]\nlisten = '127.0.0.1:9476'\nsecret_files = ['webhook-secret']\n"
        "[relay]\nmailbox = 'file:///var/lib/spotwatch-relay/box'\nkey_file = 'relay-key'\n"
        f"[[relay.droplet]]\nid = {OURS}\n"
    )
    machine.install(
        _UNIT,
        # The interpreter of a developer is at home, and that of root in a home that nobody may enter. And the
        # unit hides what is below /tmp, where a checkout may be.
        "[Service]\nProtectHome=no\nLoadCredential=\n"
        f"BindReadOnlyPaths={_CHECKOUT} {sys.prefix}\n"
        "LoadCredential=relay-key:/shared/relay-key\nLoadCredential=webhook-secret:/shared/webhook-secret\n"
        f"ExecStart=\nExecStart={sys.executable} -m spotwatch relay --config /shared/relay.toml\n",
    )
    for folder in Path(sys.base_prefix).parents:
        machine.run("chmod", "a+x", str(folder))
    done = machine.run("systemctl", "start", _UNIT)
    assert done.returncode == 0, machine.journal(_UNIT)
    return machine


def _notify(machine: Machine) -> str:
    body = json.dumps({"event": "reclaim", "droplet_id": OURS})
    headers = signed_headers(_SECRET, "msg_1", int(time.time()), body.encode())
    code = (
        "import sys, urllib.request as u, json\n"
        "r = u.Request('http://127.0.0.1:9476/webhook/digitalocean', sys.argv[1].encode(),"
        " json.loads(sys.argv[2]))\n"
        "print(u.urlopen(r, timeout=10).status)\n"
    )
    done = machine.run(sys.executable, "-c", code, body, json.dumps(headers))
    return done.stdout.strip() or done.stderr


def test_the_relay_works_in_its_sandbox(installed: Machine) -> None:
    """Without any privilege, its secrets given by systemd, it is ready and its letters arrive."""
    assert installed.show(_UNIT, "DynamicUser", "ActiveState") == {
        "DynamicUser": "yes",
        "ActiveState": "active",
    }
    assert _notify(installed) == "202", installed.journal(_UNIT)
    wait_until(
        lambda: installed.run("test", "-e", _LETTER).returncode == 0,
        15,
        f"a letter\n{installed.journal(_UNIT)}",
    )
    assert "Traceback" not in installed.journal(_UNIT)
    # systemd's soft limit is 1,024; the filter of system calls must not forbid more.
    pid = installed.show(_UNIT, "MainPID")["MainPID"]
    limits = installed.run("cat", f"/proc/{pid}/limits").stdout
    assert re.search(rf"(?m)^Max open files +{WANTED} ", limits), limits


def test_a_relay_that_is_killed_comes_back(installed: Machine) -> None:
    """It is started again, and hears."""
    installed.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", _UNIT)
    wait_until(
        lambda: (
            installed.show(_UNIT, "NRestarts", "ActiveState") == {"NRestarts": "1", "ActiveState": "active"}
        ),
        30,
        f"a restart\n{installed.journal(_UNIT)}",
    )
    assert _notify(installed) == "202", installed.journal(_UNIT)


def test_the_unit_exposes_little(systemd_analyze: str) -> None:
    """The score that systemd gives is as good as the page says."""
    done = subprocess.run(
        [systemd_analyze, "security", "--offline=true", "--threshold=15", str(UNITS / _UNIT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-200:]
