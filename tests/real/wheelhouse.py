# SPDX-License-Identifier: Apache-2.0
"""The packages that an install without a network needs, fetched once for all tests of a run.

It knows what pyproject.toml names, and installs nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from tests.real.machine import ROOT

SYSTEM_PYTHON = "/usr/bin/python3"
"""The interpreter that a machine has without our doing, and that the daemon's sandbox can see."""


def fill(folder: Path) -> None:
    """Download into `folder` what spotwatch needs to be built and to run; about 3 s and 22 MB.

    Raises:
        AssertionError: pip could not; says why.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    version = subprocess.run(
        [SYSTEM_PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--only-binary=:all:", f"--python-version={version}", f"--dest={folder}"),
            *project["project"]["dependencies"],
            *project["build-system"]["requires"],
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
