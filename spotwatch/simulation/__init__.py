# SPDX-License-Identifier: Apache-2.0
"""The whole core of the daemon in virtual time, under whatever can go wrong, with what must always hold.

`python -m spotwatch.simulation --seeds 20000` plays many stories; a seed that fails can be played again. No
cloud's own forms are played here: emulators do that.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from spotwatch.simulation._checks import Checks, Ordered
from spotwatch.simulation._machine import Machine
from spotwatch.simulation._story import Story, draw
from spotwatch.testing import run_virtual

__all__ = ["Outcome", "Story", "draw", "simulate"]

_MEMORY = Path("/dev/shm")  # noqa: S108 - only where it is quicker than the disk; the folder in it is ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one story."""

    seed: int
    problems: tuple[str, ...]
    """What must not be, each with its second; empty: all is well."""
    orders: tuple[Ordered, ...]
    deaths: int
    signals: int
    saves: int
    virtual_seconds: float


def simulate(seed: int, *, story: Story | None = None) -> Outcome:
    """Play the story of `seed`, or `story`, and return what came of it; the same each time."""
    story = story or draw(seed)
    checks = Checks()
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:

        async def main() -> Machine:
            machine = Machine(story, Path(folder), on_event=checks.on_event, on_second=checks.on_second)
            await machine.play()
            checks.at_end(machine)
            return machine

        machine = run_virtual(main())
    return Outcome(
        seed=seed,
        problems=tuple(checks.problems),
        orders=tuple(checks.orders),
        deaths=len(machine.deaths),
        signals=len(machine.trainer.signals),
        saves=len(machine.trainer.saves),
        virtual_seconds=story.ends_at,
    )
