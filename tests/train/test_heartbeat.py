# SPDX-License-Identifier: Apache-2.0
"""The trainer's word: written at changes, kept fresh, honest about speed, and never in the way."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spotwatch.handshake import Status
from spotwatch.train.heartbeat import Heartbeat
from tests.leaks import running_threads

from .conftest import Daemon


class _Beating(Heartbeat):
    """A heartbeat whose step is set by the test."""

    def __init__(self, runtime_dir: Path | None) -> None:
        self.now_at = 0
        self.looks = 0
        self.is_broken = False
        status = Status(run_id="run", pid=os.getpid(), at=datetime.now(UTC) - timedelta(days=1))
        super().__init__(runtime_dir, status, self._look, lambda: self.now_at)

    def _look(self) -> None:
        self.looks += 1
        if self.is_broken:
            self.is_broken = False
            raise RuntimeError("a defect")


@pytest.fixture
def beating(runtime_dir: Path) -> Iterator[_Beating]:
    """Return a running heartbeat."""
    beating = _Beating(runtime_dir)
    beating.start()
    yield beating
    beating.stop()


def test_a_change_is_written_at_once(beating: _Beating, daemon: Daemon) -> None:
    """The file says it when the call returns, with the time of writing."""
    beating.now_at = 3
    beating.tell(phase="resuming")
    status = daemon.status()
    assert (status.phase, status.step) == ("resuming", 3)
    assert status.is_fresh(datetime.now(UTC))
    beating.tell(only_in=("training",), phase="seen")
    assert daemon.status().phase == "resuming"


def test_a_failed_save_is_over_at_the_next_step(beating: _Beating, daemon: Daemon) -> None:
    """Training goes on, so one that is killed then was training; what went wrong stays said."""
    beating.now_at = 3
    beating.tell(phase="failed", error="the bucket is on fire")
    beating.tell()
    assert (daemon.status().phase, daemon.status().step) == ("failed", 3)
    beating.now_at = 4
    beating.tell()
    status = daemon.status()
    assert (status.phase, status.step, status.error) == ("training", 4, "the bucket is on fire")


def test_the_last_word_is_not_taken_back(beating: _Beating, daemon: Daemon) -> None:
    """A run that ends failed stays so: no step follows it."""
    beating.now_at = 3
    beating.tell(phase="failed")
    beating.now_at = 4
    beating.stop()
    beating.tell(phase="failed", exit_code=76)
    assert (daemon.status().phase, daemon.status().step) == ("failed", 4)


def test_what_was_resumed_took_no_time(beating: _Beating, daemon: Daemon) -> None:
    """A million steps restored are no million steps a second; the daemon plans by this figure."""
    beating.now_at = 10**6
    beating.count_from(10**6)
    beating.now_at += 5
    until = time.monotonic() + 10
    while not beating.status.steps_per_second:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert 0 < beating.status.steps_per_second < 1000


def test_a_defect_does_not_end_it(beating: _Beating, caplog: pytest.LogCaptureFixture) -> None:
    """The thread goes on after an exception, which is logged."""
    beating.is_broken = True
    until = time.monotonic() + 10
    while beating.is_broken:
        assert time.monotonic() < until
        time.sleep(0.02)
    looks = beating.looks
    while beating.looks < looks + 2:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert "stumbled" in caplog.text


def test_it_ends_when_told(runtime_dir: Path) -> None:
    """No thread is left, and stopping twice is harmless."""
    before = running_threads()
    beating = _Beating(runtime_dir)
    beating.start()
    beating.start()
    assert len(running_threads() - before) == 1
    beating.stop()
    beating.stop()
    assert not running_threads() - before


def test_without_a_directory_nothing_is_written(tmp_path: Path) -> None:
    """It watches all the same."""
    beating = _Beating(None)
    beating.start()
    beating.tell(phase="seen")
    beating.stop()
    assert list(tmp_path.iterdir()) == []
