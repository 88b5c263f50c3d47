# SPDX-License-Identifier: Apache-2.0
"""A machine for each test of checks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checks.bench import Bench
from tests.families import family


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Give the test a machine of its own."""
    for name in ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "GCE_METADATA_HOST", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    with family(tmp_path) as one:
        made = Bench(tmp_path, one, monkeypatch.setenv)
        yield made
        for one_socket in made.kept:
            one_socket.close()
