# SPDX-License-Identifier: Apache-2.0
"""Whether the machine or pod goes with us, asked of a real command that answers, lies or hangs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from spotwatch.surroundings import is_pod, is_system_stopping


@pytest.mark.parametrize(
    ("script", "is_stopping"),
    [
        ("echo stopping; exit 1", True),
        ("echo running", False),
        ("echo degraded; exit 1", False),
        ("echo offline; exit 1", False),
        ("echo not stopping", False),
        ("exit 127", False),
    ],
)
async def test_what_systemd_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, is_stopping: bool
) -> None:
    """Only the one word counts."""
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f"#!/bin/sh\n{script}\n", encoding="ascii")
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert await is_system_stopping() is is_stopping


async def test_one_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second is all it gets of the little time there is."""
    systemctl = tmp_path / "systemctl"
    systemctl.write_text("#!/bin/sh\nexec sleep 60\n", encoding="ascii")
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    began = time.monotonic()
    assert await is_system_stopping() is False
    assert time.monotonic() - began < 15


async def test_no_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody to ask: no."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await is_system_stopping() is False


@pytest.mark.parametrize(
    ("environ", "expected"), [({}, False), ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True)]
)
def test_pod(environ: dict[str, str], expected: bool) -> None:
    """Kubernetes puts the variable into every container."""
    assert is_pod(environ) is expected
