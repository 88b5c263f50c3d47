# SPDX-License-Identifier: Apache-2.0
"""That systemd itself finds no fault with the units and drop-ins as shipped, and how much they expose."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.real.machine import ROOT, UNITS

pytestmark = pytest.mark.real

_SHIPPED = sorted(path.name for path in UNITS.glob("*.service"))
_WATCH = "spotwatch.service"
_DROP_INS = sorted(path.stem for path in (UNITS / f"{_WATCH}.d").glob("*.conf"))
_EXPOSURE = {
    (): 1.5,
    ("processes",): 2.0,
    ("tmp-flag",): 2.5,
    ("processes", "tmp-flag"): 2.5,
    ("as-root",): 4.0,
}
"""What systemd's score may be at most, 0 to 10, for the drop-ins that are named."""


def _install(folder: Path, *drop_ins: str) -> None:
    """Lay all units into `folder`, their program replaced: it must exist here."""
    for shipped in _SHIPPED:
        text = (UNITS / shipped).read_text(encoding="utf-8")
        (folder / shipped).write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", text))
    (folder / f"{_WATCH}.d").mkdir()
    for name in drop_ins:
        shutil.copy(UNITS / f"{_WATCH}.d" / f"{name}.conf", folder / f"{_WATCH}.d")


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _score(systemd_analyze: str, unit: Path) -> float:
    done = _run(systemd_analyze, "security", "--offline=true", "--no-pager", str(unit))
    found = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    # A line that systemd does not understand is left out, and would leave the score as it was.
    assert done.stderr == ""
    return float(found[1])


@pytest.mark.parametrize("name", _SHIPPED)
def test_unit_is_clean(systemd_analyze: str, tmp_path: Path, name: str) -> None:
    """`systemd-analyze verify` says nothing; only the program's path is another, since it must exist here."""
    _install(tmp_path)
    done = _run(systemd_analyze, "verify", "--man=no", str(tmp_path / name))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("drop_in", _DROP_INS)
def test_drop_in_is_clean(systemd_analyze: str, tmp_path: Path, drop_in: str) -> None:
    """`systemd-analyze verify` says nothing about the daemon's unit with a drop-in either."""
    _install(tmp_path, drop_in)
    done = _run(systemd_analyze, "verify", "--man=no", str(tmp_path / _WATCH))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_trainers_drop_in_is_clean(systemd_analyze: str, tmp_path: Path) -> None:
    """What the install adds to a unit of the user's own is understood too."""
    _install(tmp_path)
    (tmp_path / "mine.service").write_text("[Service]\nExecStart=/bin/true\n")
    (tmp_path / "mine.service.d").mkdir()
    shutil.copy(UNITS / "trainer.conf", tmp_path / "mine.service.d")
    done = _run(systemd_analyze, "verify", "--man=no", str(tmp_path / "mine.service"))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_fault_would_be_found(systemd_analyze: str, tmp_path: Path) -> None:
    """The checks above can fail: a key that systemd does not know is reported, in a drop-in too."""
    _install(tmp_path)
    (tmp_path / f"{_WATCH}.d" / "wrong.conf").write_text("[Service]\nKilMode=mixed\n")
    done = _run(systemd_analyze, "verify", "--man=no", str(tmp_path / _WATCH))
    assert "KilMode" in done.stderr


@pytest.mark.parametrize("drop_ins", _EXPOSURE, ids=lambda names: "+".join(names) or "none")
def test_the_daemon_exposes_little(systemd_analyze: str, tmp_path: Path, drop_ins: tuple[str, ...]) -> None:
    """Each combination stays below its limit, and is what the page says."""
    _install(tmp_path, *drop_ins)
    score = _score(systemd_analyze, tmp_path / _WATCH)
    assert score <= _EXPOSURE[drop_ins]
    page = (ROOT / "docs" / "virtual-machine.md").read_text(encoding="utf-8")
    named = " and ".join(f"`{name}`" for name in drop_ins) or "none"
    printed = re.search(rf"(?m)^\| {re.escape(named)} \| ([0-9.]+) \|", page)
    assert printed, f"the page has no row for {named}"
    assert score == pytest.approx(float(printed[1]), abs=0.3)


def test_a_drop_in_counts_in_the_score(systemd_analyze: str, tmp_path: Path) -> None:
    """The limits above can fail: a drop-in that takes the sandbox away is seen."""
    _install(tmp_path)
    (tmp_path / f"{_WATCH}.d" / "open.conf").write_text("[Service]\nUser=root\nSystemCallFilter=\n")
    assert _score(systemd_analyze, tmp_path / _WATCH) > _EXPOSURE[()]
