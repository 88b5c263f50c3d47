# SPDX-License-Identifier: Apache-2.0
"""A folder that every user can look into, which pytest's own are not. It is no test."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """Give an empty folder of mode 0755 in /tmp; it is gone afterwards."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="spotwatch-open-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
