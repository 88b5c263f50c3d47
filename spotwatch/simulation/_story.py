# SPDX-License-Identifier: Apache-2.0
"""What happens in one simulation, drawn from its seed: notices, outages, trainers, deaths, clocks, reboots.

It plays nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

from spotwatch.model import Certainty, Evidence, Kind
from spotwatch.policy import Policy

Manner = Literal["library", "script", "slow", "deaf", "crashing"]
Fault = Literal["silent", "raising", "hanging", "cancelled", "garbage"]

WINDOW_SECONDS = 120.0
SLOW_DISKS = 0.15
AFTER_SECONDS = 700.0
"""Long enough after a deadline for a machine to have survived it."""


@dataclass(slots=True, kw_only=True)
class Announced:
    """One notice of the cloud; moments are seconds from the start."""

    id: str
    at: float
    seconds: float | None
    """From `at` to the deadline; None: the cloud gives no time."""
    kind: Kind
    evidence: Evidence = Evidence.STRONG
    certainty: Certainty = Certainty.EXACT
    ends_machine: bool = True
    until: float = float("inf")
    """When the cloud takes it back."""
    is_sliding: bool = False
    final_at: float = float("inf")
    """From when on it says terminate instead of stop."""
    sooner_at: float = float("inf")
    """From when on it names a time 20 s earlier."""
    flickers: tuple[float, ...] = ()
    """Moments at which it is missing from answers for a second and a half."""

    def is_in_force(self, now: float) -> bool:
        """Tell whether the cloud means it now."""
        return self.at <= now < self.until

    def is_shown(self, now: float) -> bool:
        """Tell whether an answer names it now."""
        return self.is_in_force(now) and not any(at <= now < at + 1.5 for at in self.flickers)

    def deadline(self, now: float) -> float | None:
        """Return the moment that the cloud names now."""
        if self.seconds is None:
            return None
        if self.is_sliding:
            return now + self.seconds
        return self.at + self.seconds - (20.0 if now >= self.sooner_at else 0.0)

    @property
    def asks_for_stop(self) -> bool:
        """Tell whether the machine is going to end, and that for sure."""
        ends = self.kind is Kind.RECLAIM or (self.kind is Kind.MAINTENANCE and self.ends_machine)
        return ends and self.evidence is Evidence.STRONG


@dataclass(slots=True, kw_only=True)
class Story:
    """Everything that is drawn."""

    seed: int
    policy: Policy
    manner: Manner
    secretly: Manner | None = None
    """How the trainer really is, where the checks themselves are to be tried; None: as it is said to be."""
    save_seconds: float
    notices: list[Announced]
    faults: list[tuple[float, float, Fault]] = field(default_factory=list)
    """From, until, what."""
    deaths: list[int] = field(default_factory=list)
    """How many steps each life but the last has."""
    clock_steps: list[tuple[float, float]] = field(default_factory=list)
    """When the wall clock jumps, and by how much."""
    loses_rows: bool = False
    """The disk is slow: what was written in the last second before a death is lost."""
    reboot_at: float = float("inf")
    ends_at: float = 0.0

    @property
    def is_obedient(self) -> bool:
        """Tell whether the trainer does what it is told."""
        return self.manner in ("library", "script", "slow")


def draw(seed: int) -> Story:
    """Return the story of `seed`; the same one each time."""
    rng = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
    manner: Manner = rng.choice(("library", "library", "script", "slow", "deaf", "crashing"))
    notices = [_draw_notice(rng, number) for number in range(rng.choice((1, 1, 1, 2, 3)))]
    last = max(n.at + (n.seconds or WINDOW_SECONDS) for n in notices)
    story = Story(
        seed=seed,
        policy=Policy(save_seconds=rng.choice((5.0, 10.0, 30.0))),
        manner=manner,
        save_seconds=rng.uniform(20, 50) if manner == "slow" else rng.uniform(0.2, 8),
        notices=notices,
        ends_at=last + (AFTER_SECONDS if _happens(rng, 0.4) else 0.0),
    )
    for _ in range(rng.choice((0, 0, 1, 2))):
        start = rng.uniform(0, last)
        fault: Fault = rng.choice(("silent", "raising", "hanging", "cancelled", "garbage"))
        story.faults.append((start, start + rng.uniform(1, 20), fault))
    story.deaths = [
        rng.choice((rng.randrange(60), rng.randrange(600))) for _ in range(rng.choice((0, 0, 1, 2, 4)))
    ]
    story.loses_rows = random.Random(seed + 2).random() < SLOW_DISKS  # noqa: S311 - to be repeated, not to be secret
    if _happens(rng, 0.15):
        story.clock_steps = [(rng.uniform(0, last), rng.choice((-86400.0, -3600.0, 700.0, 86400.0)))]
    if _happens(rng, 0.1):
        story.reboot_at = rng.uniform(0, last)
    return story


def _happens(rng: random.Random, share: float) -> bool:
    return rng.random() < share


def _draw_notice(rng: random.Random, number: int) -> Announced:
    kind = rng.choice(
        (Kind.RECLAIM, Kind.RECLAIM, Kind.RECLAIM, Kind.AT_RISK, Kind.HIBERNATE, Kind.MAINTENANCE)
    )
    ends = kind is Kind.RECLAIM or (kind is Kind.MAINTENANCE and _happens(rng, 0.5))
    has_time = kind is Kind.MAINTENANCE or (kind is Kind.RECLAIM and _happens(rng, 0.8))
    certainty = rng.choice((Certainty.EXACT, Certainty.EXACT, Certainty.EXACT, Certainty.ESTIMATE))
    one = Announced(
        id=f"n{number}",
        at=rng.uniform(3, 60),
        seconds=rng.choice((20.0, 60.0, 110.0, WINDOW_SECONDS)) if has_time else None,
        kind=kind,
        ends_machine=ends,
        certainty=certainty,
        evidence=Evidence.WEAK if _happens(rng, 0.1) else Evidence.STRONG,
    )
    window = one.seconds or WINDOW_SECONDS
    if _happens(rng, 0.3):
        one.until = one.at + rng.uniform(1, window * 1.5)
    if one.seconds is not None and _happens(rng, 0.1):
        one.is_sliding = True
    elif one.seconds is not None and _happens(rng, 0.1):
        one.sooner_at = one.at + rng.uniform(1, window / 2)
    if _happens(rng, 0.1):
        one.final_at = one.at + rng.uniform(1, window)
    if _happens(rng, 0.2):
        first = one.at + rng.uniform(0, window)
        one.flickers = (first, first + 10, first + 25)
    return one
