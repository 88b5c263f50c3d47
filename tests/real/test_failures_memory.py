# SPDX-License-Identifier: Apache-2.0
"""A machine without memory for a copy of the state: each save is sent in parts straight from the tensors."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.failures_bucket import Place
from tests.real.failures_runs import Runs

pytest_plugins = ["tests.real.failures_fixtures"]
pytestmark = [pytest.mark.real, pytest.mark.timeout(60, func_only=True)]

_CGROUPS = Path("/sys/fs/cgroup")
_IS_V1 = (_CGROUPS / "memory").is_dir()
_LIMIT, _USE = (
    ("memory.limit_in_bytes", "memory.usage_in_bytes") if _IS_V1 else ("memory.max", "memory.current")
)
_LARGE = ("--width", "3185", "--total", "8")
# Before its first step: 82 MB of optimizer state and 41 MB of gradients are to come, and what sending takes.
# A buffer of 125 MB wants as much again beside it.
_MORE_BYTES = 300 * 2**20


@pytest.fixture
def group() -> Iterator[Path]:
    """Return a control group whose memory can be limited."""
    name = f"spotwatch-{uuid.uuid4().hex[:8]}"
    group = (_CGROUPS / "memory" if _IS_V1 else _CGROUPS) / name
    try:
        group.mkdir()
        (group / _USE).read_text(encoding="ascii")
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"lacks control groups that can be made: {error}")
    yield group
    group.rmdir()


def test_no_room_for_a_copy(large_place: Place, runs: Runs, group: Path) -> None:
    """It is said once, the checkpoints are whole, and on a machine with more memory the run goes on."""
    options = (*_LARGE, "--hold-at", "0", "6")
    place = group / "cgroup.procs"
    trainer = runs.start(large_place.url, *options, environ=large_place.environ, groups=(place,))
    trainer.wait_for("holds 0$")
    used = int((group / _USE).read_text(encoding="ascii"))
    (group / _LIMIT).write_text(str(used + _MORE_BYTES), encoding="ascii")
    runs.go_on(0)
    trainer.wait_for("holds 6$")
    trainer.kill()
    assert trainer.text.count("sent in parts straight from the tensors") == 1, trainer.text
    assert large_place.latest_step() == 4
    runs.expect(runs.at(large_place, *_LARGE), resumed=4, options=_LARGE)
