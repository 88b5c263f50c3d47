# SPDX-License-Identifier: Apache-2.0
"""One rate for all threads, by a clock that the test moves."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from spotwatch.errors import ConfigError
from spotwatch.train.stores.pacing import Pace


class Clock:
    """A monotonic clock that stands still until told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Return the moment."""
        return self.now


def test_bytes_wait_for_those_before_them() -> None:
    """The first part goes at once, each other one when those before it have had their time."""
    pace = Pace(10.0, monotonic=Clock())
    assert [pace.book(20) for _ in range(3)] == [0.0, 2.0, 4.0]


def test_idle_time_is_not_saved_up() -> None:
    """After an hour without a byte the rate is what it was."""
    clock = Clock()
    pace = Pace(10.0, monotonic=clock)
    pace.book(20)
    clock.now += 3600
    assert [pace.book(20), pace.book(20)] == [0.0, 2.0]


def test_without_a_limit_nobody_waits() -> None:
    """None is no limit."""
    pace = Pace(None)
    assert pace.book(10**15) == 0.0
    assert pace.book(10**15) == 0.0


@pytest.mark.parametrize("rate", [0, -1.0, float("nan")])
def test_a_rate_that_is_none(rate: float) -> None:
    """It is the user's to mend."""
    with pytest.raises(ConfigError, match="give bytes above 0"):
        Pace(rate)


def test_threads_share_the_rate() -> None:
    """Ten parts by four threads take as long as nine of them need."""
    pace = Pace(1_000_000.0)
    began = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(pace.wait, [20_000] * 10))
    assert time.monotonic() - began >= 9 * 0.02


def test_who_has_been_called_off_does_not_wait() -> None:
    """A wait of an hour ends when the upload does, and its bytes are given back."""
    clock = Clock()
    pace = Pace(1.0, monotonic=clock)
    pace.wait(3600)
    ended = threading.Event()
    ended.set()
    pace.wait(3600, ended)
    assert pace.book(1) == 3600.0
