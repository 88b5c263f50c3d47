# SPDX-License-Identifier: Apache-2.0
"""How a worker works on a list, and what ends its waiting. It does nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spotwatch.train.done.keeper import Bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a worker works."""

    bounds: Bounds
    shares: int | None
    """None: as many as the list has; 1 for one that begins."""
    patience_seconds: float
    lease_seconds: float
    verify: bool
    monotonic: Callable[[], float]
    """It must count a suspended machine's sleep."""
    sleep: Callable[[float], None]


class StoppedError(Exception):
    """A stop came while something was waited for."""
