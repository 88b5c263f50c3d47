# SPDX-License-Identifier: Apache-2.0
"""What a window means for a rehearsal: the policy in proportion to it, and how long the trainer must train.

Pure: nothing is started and no clock is read here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType

from spotwatch.errors import ConfigError
from spotwatch.policy import Policy

_WINDOW_SECONDS = MappingProxyType(
    {
        # EC2 User Guide, "Spot Instance interruption notices": two minutes, told in whole seconds. With one
        # second lost to that and one to the interval, a shorter window leaves no time for flush and stop.
        "aws": (5.0, 120.0),
        # Up to 120 s of preemption notice and 30 s of ACPI (Compute Engine, "Spot VMs").
        "gcp": (2.0, 150.0),
        # Preempt gives 30 s, best effort ("Scheduled Events for Linux VMs").
        "azure": (2.0, 120.0),
        # The preview's target: two hours.
        "digitalocean": (2.0, 7200.0),
    }
)
"""The shortest window worth rehearsing, and the longest that the cloud gives."""
_INTERVALS = MappingProxyType(
    {
        "aws": 1.0,
        "gcp": 1.0,  # until it has settled; then the server holds the request and answers at a change
        "azure": 1.0,
        "digitalocean": 1.0,  # pushed, and seen at once; this is how often the inbox is looked at besides
    }
)
"""How often each provider asks by default."""
ORDER_SLACK_SECONDS = 1.0
"""An order must be out one interval and this much after the announcement."""
FLUSHING = frozenset({"aws", "digitalocean"})
"""Clouds whose notice leaves time for a flush before the stop; the others' means stop at once."""

_BEFORE_SECONDS = 1.5
_AFTER_SECONDS = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One rehearsal's measures."""

    window_seconds: float
    """From the announcement to the moment at which the machine is gone."""
    policy: Policy
    step_seconds: float
    total_steps: int
    notice_step: int
    """The notice is given once the trainer has done this many steps."""

    def order_limit_seconds(self, cloud: str) -> float:
        """Return how long after the announcement an order may appear on `cloud`."""
        return interval_seconds(cloud) + ORDER_SLACK_SECONDS

    def variables(self) -> Mapping[str, str]:
        """Return the policy as a daemon's environment."""
        return {f"SPOTWATCH_POLICY__{name.upper()}": text for name, text in self._measures().items()}

    def describe(self) -> str:
        """Return the policy as one line for people."""
        shown = (f"{name} = {text}" for name, text in self._measures().items())
        return f"window {self.window_seconds:g} s, and in proportion to it: {', '.join(shown)}"

    def _measures(self) -> Mapping[str, str]:
        return {
            f.name: f"{getattr(self.policy, f.name):g}"
            for f in fields(Policy)
            if getattr(self.policy, f.name) != f.default and isinstance(f.default, float)
        }


def make_plan(window_seconds: float, clouds: Sequence[str]) -> Plan:
    """Return the measures for a window, such that a flush and the stop after it both fit where both are due.

    Args:
        window_seconds: from notice to reclaim.
        clouds: where it is rehearsed.

    Raises:
        ConfigError: the window is too short to rehearse, or longer than one of the clouds ever gives.
    """
    for cloud in clouds:
        shortest, longest = _WINDOW_SECONDS[cloud]
        if not window_seconds >= shortest:
            raise ConfigError(
                f"window {window_seconds:g} s is too short to rehearse {cloud}; take {shortest:g} s or more"
            )
        if window_seconds > longest:
            raise ConfigError(
                f"window {window_seconds:g} s is more than {cloud} gives ({longest:g} s); take less"
            )
    policy = Policy(
        save_seconds=_share(window_seconds, 0.1),
        # A trainer with torch takes a second or two from its last save to its exit.
        stop_margin_seconds=_share(window_seconds, 0.3),
        target_margin_seconds=_share(window_seconds, 0.45),
        # Short of half of what lies before a target's stop, so that a second flush is rehearsed too.
        reflush_seconds=_share(window_seconds, 0.2),
        unanswered_seconds=_share(window_seconds, 1.0),
    )
    step_seconds = 0.02 if window_seconds < 10 else 0.05  # noqa: PLR2004 - short windows want finer steps
    seconds = _BEFORE_SECONDS + window_seconds + _AFTER_SECONDS
    return Plan(
        window_seconds=window_seconds,
        policy=policy,
        step_seconds=step_seconds,
        total_steps=math.ceil(seconds / step_seconds),
        notice_step=math.ceil(_BEFORE_SECONDS / step_seconds),
    )


def interval_seconds(cloud: str) -> float:
    """Return how often the cloud is asked."""
    return _INTERVALS[cloud]


def _share(window_seconds: float, part: float) -> float:
    return round(window_seconds * part, 3)
