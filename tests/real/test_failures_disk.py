# SPDX-License-Identifier: Apache-2.0
"""A directory on a disk that is full: saves fail and say so, training goes on, what was saved stays."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spotwatch.clock import read_boot_id
from spotwatch.handshake import ORDER, Order
from spotwatch.model import Do
from spotwatch.safe_files import write_atomically
from spotwatch.train.registry.manifest import LATEST, Latest
from tests.real.failures_bucket import step_of
from tests.real.failures_runs import Runs

pytest_plugins = ["tests.real.failures_fixtures"]
pytestmark = [pytest.mark.real, pytest.mark.timeout(60, func_only=True)]

_DISK_BYTES = 64 * 2**20
_SPARE_BYTES = 4 * 2**20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return a file system with room for five checkpoints."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("lacks root, or mount")
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "disk", path], check=True)
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


def _fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    free = os.statvfs(disk)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - _SPARE_BYTES)
    return ballast


def _latest_step(disk: Path) -> int:
    return step_of(Latest.from_bytes((disk / "run" / LATEST).read_bytes()).dir)


def test_full_for_a_while(disk: Path, runs: Runs) -> None:
    """The save that did not fit is said to have failed, and the next one that fits counts."""
    trainer = runs.start(str(disk), "--blocking", "--hold-at", "4", "8")
    trainer.wait_for("step 4 is durable")
    ballast = _fill(disk)
    runs.go_on(4)
    trainer.wait_for("step 8 is not saved")
    assert _latest_step(disk) == 4
    ballast.unlink()
    runs.go_on(8)
    runs.expect(trainer, resumed=0)
    assert "No space left on device" in trainer.text
    assert _latest_step(disk) == 12


def test_full_to_the_end(disk: Path, runs: Runs) -> None:
    """Told to stop with no room for the last save: 76, and the run goes on from what was saved before."""
    trainer = runs.start(str(disk), "--hold-at", "4")
    trainer.wait_for("step 4 is durable")
    trainer.wait_for("holds 4$")
    ballast = _fill(disk)
    # With a deadline, so that it does not try for the 30 s that it has otherwise.
    deadline = datetime.now(UTC) + timedelta(seconds=4)
    order = Order(boot_id=read_boot_id(), seq=1, do=Do.STOP, deadline=deadline)
    write_atomically(runs.runtime_dir / ORDER, order.to_bytes())
    assert trainer.end() == 76, trainer.text
    assert "step 5 is not saved" in trainer.text
    assert "No space left on device" in trainer.text
    assert _latest_step(disk) == 4
    ballast.unlink()
    (runs.runtime_dir / ORDER).unlink()
    runs.expect(runs.start(str(disk)), resumed=4)
