# SPDX-License-Identifier: Apache-2.0
"""What fits into a cloud's notice, and that the daemon says at its start where nothing does."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwatch.assembly import Assembly
from spotwatch.clock import SystemClock
from spotwatch.config import Settings
from spotwatch.logs import get_logger
from spotwatch.policy import Policy
from spotwatch.save_fit import Fit, fit, only_periodic


@pytest.mark.parametrize(
    ("window", "save", "expected"),
    [
        (120, 30, Fit.FLUSH_THEN_STOP),  # 30 + 45 + 15
        (120, 42, Fit.FLUSH_THEN_STOP),  # exactly
        (120, 43, Fit.STOP),
        (120, 70, Fit.STOP),  # 105 + 15, exactly
        (120, 71, Fit.TIGHT),
        (120, 120, Fit.TIGHT),
        (120, 121, Fit.NONE),
        (30, 30, Fit.TIGHT),
    ],
)
def test_what_fits_a_window(window: float, save: float, expected: Fit) -> None:
    """With safety 1.5 and 15 s to spare, as they are by default."""
    assert fit(window, save, Policy()) is expected


def test_start_log_names_the_clouds_without_a_chance() -> None:
    """One line for each cloud that gives less time than a save takes."""
    lines = only_periodic({"aws": 120.0, "gcp": 30.0}, 45.0)
    assert lines == ["gcp gives 30 s and a save may take 45 s: only periodic saves count here"]
    assert only_periodic({"aws": 120.0}, 120.0) == []


@pytest.mark.parametrize(("save_seconds", "is_warned"), [(31.0, True), (30.0, False)])
async def test_daemon_says_so_at_its_start(save_seconds: float, is_warned: bool, tmp_path: Path) -> None:
    """The same words as in `spotwatch check`, for each cloud that is watched."""
    settings = Settings(
        providers=("azure",), runtime_dir=tmp_path / "run", policy=Policy(save_seconds=save_seconds)
    )
    async with Assembly(
        settings,
        SystemClock(),
        log=get_logger(),
        child=None,
        is_dry_run=True,
        is_healthy=lambda: True,
    ) as parts:
        told = [line for line in parts.warnings if "only periodic saves count here" in line]
    assert [line.split()[0] for line in told] == (["azure"] if is_warned else [])
