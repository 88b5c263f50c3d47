# SPDX-License-Identifier: Apache-2.0
"""What `check` takes for the daemon's environment is what a booted systemd gives a unit."""

from __future__ import annotations

import pytest

from spotwatch.checks.environments import read_environment_file, read_shown_environment
from tests.checks.test_environments import ENVIRONMENT_FILE, EXPECTED
from tests.real.machine import Machine

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

_UNIT = r"""[Service]
Type=oneshot
RemainAfterExit=yes
Environment="B_A=b c" "B_D=$x" 'B_Q=say "hi"' "B_N=a\nb" B_T=x\ty
Environment=B_BACK=c:\\\\d "B_TICK=`id`" B_EMPTY= B_TILDE=~/a
EnvironmentFile=/shared/env-*.txt
ExecStart=/bin/sh -c 'cat /proc/self/environ > /shared/environ'
"""


def test_systemd_and_we_read_the_same(machine: Machine) -> None:
    """Name by name, of the file, of a second one that a pattern names too, and of Environment=."""
    (machine.shared / "env-1.txt").write_text(ENVIRONMENT_FILE, encoding="utf-8")
    (machine.shared / "env-2.txt").write_text("KEY=of the second\n", encoding="utf-8")
    (machine.shared / "environ.service").write_text(_UNIT, encoding="utf-8")
    machine.check("cp", "/shared/environ.service", "/run/systemd/system/environ.service")
    machine.check("systemctl", "daemon-reload")
    machine.check("systemctl", "start", "environ")
    rows = (machine.shared / "environ").read_text(encoding="utf-8").split("\0")
    given = dict(row.split("=", 1) for row in rows if row)
    shown = read_shown_environment(machine.show("environ", "Environment")["Environment"])
    assert {name: given[name] for name in shown} == shown
    assert len(shown) == 9
    files = read_environment_file(ENVIRONMENT_FILE) | {"KEY": "of the second"}
    assert {name: given.get(name) for name in files} == files
    assert not {"EXPORTED", "9BAD", "NONE"} & given.keys()
    assert files.keys() == EXPECTED.keys()
