# SPDX-License-Identifier: Apache-2.0
"""A program with a gloo group of its own ends, in whichever order it lets go of model and group."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.train.launching import LAUNCH_SECONDS, WORKERS, clean_environ

pytest.importorskip("torch", reason="the model that is freed is torch's")
pytestmark = pytest.mark.timeout(LAUNCH_SECONDS + 10)


def test_a_model_freed_after_its_group_does_not_hang() -> None:
    """A DistributedDataParallel that outlives `destroy_process_group()` is freed, sixty times of sixty."""
    run = subprocess.run(
        [sys.executable, WORKERS / "freed_run.py"],
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=LAUNCH_SECONDS,
        check=False,
    )
    assert run.stdout == "60 ended\n", run.stderr
