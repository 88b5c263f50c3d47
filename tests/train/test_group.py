# SPDX-License-Identifier: Apache-2.0
"""Waiting for the other ranks: told when it lasts, by the training thread alone."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from spotwatch.errors import RankGone
from spotwatch.train.ranks import group
from spotwatch.train.ranks.group import Round


class _Values:
    """What of a tensor a round reads."""

    def tolist(self) -> list[int]:
        """Return the integers."""
        return [1, 2]


class _Work:
    """A collective that the others join late, or never."""

    def __init__(self, seconds: float, error: str = "") -> None:
        self._over_at = time.monotonic() + seconds
        self._error = error

    def is_completed(self) -> bool:
        """Tell whether the others have come."""
        return time.monotonic() >= self._over_at

    def wait(self) -> None:
        """Raise what gloo would."""
        if self._error:
            raise RuntimeError(self._error)


def _round(seconds: float, error: str = "") -> Round:
    work: Any = _Work(seconds, error)
    values: Any = _Values()
    return Round(work, values)


def test_a_wait_that_lasts_is_told_and_told_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who looks at a run that stands still reads since when, in which line of the program, and why."""
    monkeypatch.setattr(group, "_TELL_AFTER_SECONDS", 0.05)
    monkeypatch.setattr(group, "_TELL_AGAIN_SECONDS", 0.2)
    assert _round(0.35).wait() == [1, 2]
    assert len(caplog.records) == 2
    first = caplog.records[0].getMessage()
    assert f"in wait() at {__file__}:" in first
    assert "DistributedDataParallel.join() is not supported" in first


def test_a_short_wait_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    """Ranks wait for each other at every step."""
    _round(0.05).wait()
    assert not caplog.records


def test_the_saving_thread_waits_in_silence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits for the uploads of all ranks, and training goes on meanwhile."""
    monkeypatch.setattr(group, "_TELL_AFTER_SECONDS", 0.01)
    saving = threading.Thread(target=_round(0.1).wait, name="spotwatch-save")
    saving.start()
    saving.join()
    assert not caplog.records


def test_a_rank_that_has_gone_is_told() -> None:
    """As gone, at once, and where it was waited for; a limit that nobody has waited for is not named."""
    with pytest.raises(
        RankGone, match=r"of this run has gone: it was waited for in .* for 0 s: Connection closed"
    ):
        _round(0, "Connection closed by peer").wait()


def test_a_rank_that_stays_silent_is_told_in_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit reads as a person would say it, once it has been waited for."""
    monkeypatch.setattr(group, "_LONGEST_WAIT_HOURS", 0)
    with pytest.raises(RankGone, match=r"has not answered for 0 hours"):
        _round(0, "Timed out").wait()
