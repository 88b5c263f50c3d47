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
_LARGE = ("--width", "3185", "--total", "8")
# 123 MB of state and 41 MB of gradients; a buffer of 125 MB wants as much again beside it.
_LIMIT_BYTES = 480 * 2**20


@pytest.fixture
def small_machine() -> Iterator[Path]:
    """Return a control group whose memory is limited."""
    name = f"spotwatch-{uuid.uuid4().hex[:8]}"
    is_v1 = (_CGROUPS / "memory").is_dir()
    group = _CGROUPS / "memory" / name if is_v1 else _CGROUPS / name
    limit = group / ("memory.limit_in_bytes" if is_v1 else "memory.max")
    try:
        group.mkdir()
        limit.write_text(str(_LIMIT_BYTES), encoding="ascii")
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"lacks control groups that can be made: {error}")
    yield group
    group.rmdir()


def test_no_room_for_a_copy(weed_place: Place, runs: Runs, small_machine: Path) -> None:
    """It is said once, the checkpoints are whole, and on a machine with more memory the run goes on."""
    options, group = (*_LARGE, "--hold-at", "6"), (small_machine / "cgroup.procs",)
    trainer = runs.start(weed_place.url, *options, environ=weed_place.environ, groups=group)
    trainer.wait_for("holds 6$")
    trainer.kill()
    assert trainer.text.count("sent in parts straight from the tensors") == 1, trainer.text
    assert weed_place.latest_step() == 4
    runs.expect(runs.at(weed_place, *_LARGE), resumed=4, options=_LARGE)
