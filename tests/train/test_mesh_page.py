# SPDX-License-Identifier: Apache-2.0
"""The program on the page about tensor parallelism, run as printed by four ranks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from spotwatch.train.registry.registry import Registry
from spotwatch.train.stores.directory import DirectoryStore
from tests.train.launching import LAUNCH_SECONDS, WORKERS, clean_environ
from tests.train.rendezvous import rendezvous

pytest.importorskip("torch", reason="meshes are torch's")

_PAGE = Path(__file__).parents[2] / "docs" / "integrations" / "tensor-parallel.md"


@pytest.mark.timeout(300)
def test_the_program_runs_as_printed(tmp_path: Path) -> None:
    """It trains to its end, and what it has saved is of four ranks; started again, it has nothing to do."""
    (block,) = re.findall(r"```python\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)
    program = tmp_path / "train.py"
    program.write_text(block, encoding="utf-8")
    (tmp_path / "runtime").mkdir(mode=0o700)
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, str(WORKERS / "launch.py"), "4", str(program)],
            env=clean_environ()
            | rendezvous()
            | {
                "SPOTWATCH_CHECKPOINT_URL": str(tmp_path / "store"),
                "SPOTWATCH_RUNTIME_DIR": str(tmp_path / "runtime"),
            },
            capture_output=True,
            text=True,
            timeout=LAUNCH_SECONDS,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr
    registry = Registry(DirectoryStore(tmp_path / "store" / "sweep-01"), "sweep-01")
    latest = registry.latest()
    assert latest is not None
    assert latest.step == 50
    assert registry.manifest(latest.dir).world_size == 4
