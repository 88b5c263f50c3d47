# SPDX-License-Identifier: Apache-2.0
"""That systemd itself finds no fault with the units as they are shipped."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.real.machine import UNITS

pytestmark = pytest.mark.real

_SHIPPED = sorted(path.name for path in UNITS.glob("*.service"))


@pytest.mark.parametrize("name", _SHIPPED)
def test_unit_is_clean(systemd_analyze: str, tmp_path: Path, name: str) -> None:
    """`systemd-analyze verify` says nothing; only the program's path is another, since it must exist here."""
    for shipped in _SHIPPED:
        text = (UNITS / shipped).read_text(encoding="utf-8")
        (tmp_path / shipped).write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", text))
    done = subprocess.run(
        [systemd_analyze, "verify", "--man=no", str(tmp_path / name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_fault_would_be_found(systemd_analyze: str, tmp_path: Path) -> None:
    """The check above can fail: a key that systemd does not know is reported."""
    unit = tmp_path / "wrong.service"
    unit.write_text("[Service]\nExecStart=/bin/true\nKilMode=mixed\n")
    done = subprocess.run([systemd_analyze, "verify", str(unit)], capture_output=True, text=True, check=False)
    assert "KilMode" in done.stderr
