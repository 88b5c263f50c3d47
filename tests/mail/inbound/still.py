# SPDX-License-Identifier: Apache-2.0
"""A clock that stands still, for services: they only ask what time it is.

It holds no test.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from spotwatch.testing import FakeClock


class Still(FakeClock):
    """Says the same moment until it is pushed, whatever loop runs."""

    def now(self) -> datetime:
        """Return the moment it was set to."""
        return self.start + timedelta(seconds=self.wall_offset_seconds)

    def monotonic(self) -> float:
        """Return what it was pushed by."""
        return self.wall_offset_seconds
