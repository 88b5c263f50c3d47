# SPDX-License-Identifier: Apache-2.0
"""The program on Accelerate's page is run as printed, stopped, and run again."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.integrations.accelerate_lives import ROOT
from tests.train.integrations.lives import HERE
from tests.train.launching import LAUNCH_SECONDS, clean_environ

for needed in ("torch", "accelerate"):
    pytest.importorskip(needed, reason=f"needs {needed}")
pytestmark = pytest.mark.timeout(LAUNCH_SECONDS)

PAGE = ROOT / "docs/integrations/accelerate.md"


def test_the_program_of_the_page_goes_on_where_it_was_stopped(tmp_path: Path, runtime_dir: Path) -> None:
    """What two lives print is what one prints, and the first ends with 75."""
    (program,) = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, str(HERE / "accelerate_page.py"), str(tmp_path / "train.py"), str(tmp_path)],
        env=clean_environ()
        | {
            "PYTHONPATH": str(ROOT),
            "SPOTWATCH_CHECKPOINT_URL": str(tmp_path / "store"),
            "SPOTWATCH_RUNTIME_DIR": str(runtime_dir),
        },
        capture_output=True,
        text=True,
        timeout=LAUNCH_SECONDS,
        check=False,
    )
    assert run.stdout == "[0, 75, 0]\n", run.stderr
    printed = {
        name: (tmp_path / name).read_text(encoding="utf-8") for name in ("straight", "first", "second")
    }
    assert printed["straight"].count("step") == 5
    assert printed["first"] + printed["second"] == printed["straight"]
    assert printed["first"]
