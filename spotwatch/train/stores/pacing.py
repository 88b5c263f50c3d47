# SPDX-License-Identifier: Apache-2.0
"""How quickly a process may send: one rate for all its threads.

It sends nothing, and knows nothing of other processes. Standard library only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from spotwatch.errors import ConfigError


class Pace:
    """Keeps the bytes of all threads together below a rate.

    Args:
        most_bytes_per_second: None: no limit.
        monotonic: the clock, in seconds.

    Raises:
        ConfigError: a rate that is not above zero.
    """

    def __init__(
        self, most_bytes_per_second: float | None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        if most_bytes_per_second is not None and not most_bytes_per_second > 0:
            raise ConfigError(
                f"most_bytes_per_second is {most_bytes_per_second}; give bytes above 0, or None for no limit"
            )
        self.most_bytes_per_second = most_bytes_per_second
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._free_at = monotonic()
        self._booked = 0

    def wait(self, size_bytes: int, ended: threading.Event | None = None) -> None:
        """Return when `size_bytes` may be sent, or as soon as `ended` is set.

        The wait is for the bytes before these, so one part may always go at once, and no more than one.
        """
        seconds = self.book(size_bytes)
        if seconds > 0 and (ended or threading.Event()).wait(seconds):
            self.book(-size_bytes)

    def book(self, size_bytes: int) -> float:
        """Take `size_bytes` out of the rate and return in how many seconds they may be sent."""
        if self.most_bytes_per_second is None:
            return 0.0
        with self._lock:
            now = self._monotonic()
            begin = max(self._free_at, now)
            self._free_at = begin + size_bytes / self.most_bytes_per_second
            self._booked += size_bytes
            return begin - now

    def granted_bytes(self) -> float:
        """Return how many of the bytes that were booked the rate has let go by now; 0 without a limit."""
        if self.most_bytes_per_second is None:
            return 0.0
        with self._lock:
            ahead = max(self._free_at - self._monotonic(), 0.0)
            return self._booked - ahead * self.most_bytes_per_second
