# SPDX-License-Identifier: Apache-2.0
"""How many steps a reclaim cost, counted from what the trainers wrote down while they executed them.

Pure: it reads no file. Where there is no such record it is not guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What became of the steps of one run."""

    lost: int
    """Steps that the first machine did beyond the one at which the second went on: done, and gone."""
    twice: int
    """Steps that were executed more than once, on either machine."""
    skipped: int
    """Steps that nobody executed."""
    resumed_from: int


def count_steps(first: Sequence[int], second: Sequence[int], total_steps: int) -> Steps | None:
    """Return what was lost, repeated and left out; None when either machine executed nothing.

    Args:
        first: steps in the order in which the first machine executed them, the first step of a run being 1.
        second: the same of its replacement.
        total_steps: how many make a complete run.
    """
    if not first or not second:
        return None
    resumed_from = second[0] - 1
    times = Counter((*first, *second))
    return Steps(
        lost=max(0, max(first) - resumed_from),
        twice=sum(count > 1 for count in times.values()),
        skipped=sum(step not in times for step in range(1, total_steps + 1)),
        resumed_from=resumed_from,
    )


def read_trace(lines: Iterable[str]) -> tuple[int, ...]:
    """Return the steps in lines of `STEP PID`; a line that was cut off by a kill is left out.

    Raises:
        ValueError: a whole line begins with no number.
    """
    return tuple(int(line.split()[0]) for line in lines if line.endswith("\n"))
