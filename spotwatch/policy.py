# SPDX-License-Identifier: Apache-2.0
"""What is to be done next, given all cases in force and the progress so far.

Pure: it reads no clock, no file, and keeps nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Response = Literal["ignore", "flush", "stop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How notices are answered; every duration in seconds."""

    mode: Literal["flush-then-stop", "flush-only", "stop-now"] = "flush-then-stop"
    save_seconds: float = 30.0
    """How long a save takes until durable saves have been measured."""
    safety_factor: float = 1.5
    stop_margin_seconds: float = 15.0
    target_margin_seconds: float = 900.0
    """Kept free before a deadline that is only a target."""
    reflush_seconds: float = 600.0
    unanswered_seconds: float = 600.0
    at_risk: Response = "flush"
    maintenance_live: Response = "flush"
    maintenance_ends: Response = "stop"
    ends_at: str = ""
    """RFC 3339: a known end of this machine; stops in time, no cloud signal needed."""
    drain_seconds: float = 10.0
