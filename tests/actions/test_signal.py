# SPDX-License-Identifier: Apache-2.0
"""A stop on one target: found, then told, each time anew."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spotwatch.actions.signal import SignalAction
from spotwatch.config import TargetSettings
from spotwatch.errors import ActionError
from spotwatch.model import Do, Kind, Notice, Step
from spotwatch.targets import make_targets
from tests.families import Family, family

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
NOTICE = Notice(id="n-1", provider="aws", signal="instance-action", kind=Kind.RECLAIM, seen_at=NOW)
STEP = Step(at=NOW, do=Do.STOP, why="reclaim", seq=1)


@pytest.fixture
def fam(tmp_path: Path) -> Iterator[Family]:
    """Give the test processes of its own."""
    with family(tmp_path) as one:
        yield one


async def test_a_stop_finds_and_tells(fam: Family) -> None:
    """A trainer that is missing is an error that may pass; one that is there is told."""
    (target,) = make_targets((TargetSettings(process=fam.pattern),), None)
    action = SignalAction(target)
    assert action.name == "signal"
    assert action.does == {Do.STOP}
    with pytest.raises(ActionError, match="no process matches"):
        await action.fire(STEP, NOTICE)
    process = fam.start(fam.trainer(), trainers=1)
    assert f"SIGTERM to pid {process.pid}" in await action.fire(STEP, NOTICE)
    assert process.wait() == 75
    assert fam.told() == [process.pid]
