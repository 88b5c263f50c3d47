# SPDX-License-Identifier: Apache-2.0
"""Who says whether the clock is right, and that nobody is asked who might kill us for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwatch import clock_sync
from spotwatch.clock_sync import is_clock_synced


@pytest.mark.parametrize(("files", "wanted"), [(None, None), ([], False), (["synchronized"], True)])
def test_under_a_filter_the_time_service_is_asked(
    tmp_path: Path, files: list[str] | None, wanted: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory without the file is a clock that is not set yet; no directory is no knowledge."""
    monkeypatch.setattr(clock_sync, "_asked_of_kernel", lambda: pytest.fail("the kernel was asked"))
    status = tmp_path / "status"
    status.write_text("Seccomp:\t2\nSeccomp_filters:\t1\n")
    if files is not None:
        (tmp_path / "timesync").mkdir()
        for name in files:
            (tmp_path / "timesync" / name).touch()
    assert is_clock_synced(status=status, timesync=tmp_path / "timesync") is wanted


def test_without_a_filter_the_kernel_is_asked(tmp_path: Path) -> None:
    """Its answer is yes or no, or none where it does not know the question."""
    status = tmp_path / "status"
    status.write_text("Seccomp:\t0\n")
    assert is_clock_synced(status=status, timesync=tmp_path) in {True, False, None}


def test_without_any_proc_nobody_is_asked(tmp_path: Path) -> None:
    """Not to know is not to say that the clock is wrong."""
    assert is_clock_synced(status=tmp_path / "none", timesync=tmp_path / "none") is None
