# SPDX-License-Identifier: Apache-2.0
"""What the tests of the command line share: a run to look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from .checkpoint_runs import RUN, train


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the store of a run of three steps."""
    train(tmp_path / "store", 3)
    return tmp_path / "store" / RUN
