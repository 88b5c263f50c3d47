# SPDX-License-Identifier: Apache-2.0
"""What lives of trainings with a Trainer have noted, and whether together they are the uninterrupted one.

Life 0 of each case is the one without us. It starts no training but by `run`.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.train.integrations.lives import lives

ROOT = Path(__file__).parents[3]
PLAIN: dict[str, Any] = {"plain": True}
_NAMES = ("case", "life", "rank", "what")


def at(
    count: int, signal: str = "SIGTERM", *, within: str = "train", rank: int | None = None
) -> dict[str, Any]:
    """Return a life that is signalled at a batch."""
    return {"events": [[within, count, signal, *([] if rank is None else [rank])]]}


def run(base: Path, cases: list[dict[str, Any]], ranks: int = 1) -> Noted:
    """Live all cases, and return what was noted."""
    with lives(base / "runs", "transformers_run.py", json.dumps(cases), ranks=ranks) as runs:
        output = runs.run(PYTHONPATH=str(ROOT))
        return Noted(runs.rows(), output, runs.base)


class Noted:
    """What was noted.

    Args:
        rows: of all cases.
        output: what was printed.
        base: where the stores and folders are.
    """

    def __init__(self, rows: list[dict[str, Any]], output: str, base: Path) -> None:
        self._rows = rows
        self.output = output
        self.base = base

    def all(self, case: str, what: str, *, rank: int = 0, life: int | None = None) -> list[dict[str, Any]]:
        """Return the rows of one kind, in order."""
        wanted = {"case": case, "what": what, "rank": rank} | ({} if life is None else {"life": life})
        return [row for row in self._rows if wanted.items() <= row.items()]

    def exits(self, case: str, *, rank: int = 0) -> list[int]:
        """Return how the lives have ended, but for the one without us."""
        return [row["status"] for row in self.all(case, "exit", rank=rank) if row["life"]]

    def last(self, case: str, *, rank: int = 0) -> dict[str, Any]:
        """Return how the last life has ended."""
        return self.all(case, "end", rank=rank)[-1]

    def steps(self, case: str, what: str, *, life: int, rank: int = 0) -> dict[int, list[Any]]:
        """Return what a life has noted, by the step."""
        rows = self.all(case, what, life=life, rank=rank)
        return {step: [_bare(row) for row in of] for step, of in groupby(rows, lambda row: row["step"])}

    def assert_same(self, case: str, *, killed: bool = False, rank: int = 0) -> None:
        """Hold the lives together against the one without us: losses, data, rates, logs, and the end."""
        assert self.exits(case, rank=rank)[-1] == 0, self.output
        numbers = sorted({row["life"] for row in self.all(case, "exit", rank=rank)})
        for what in ("train", "eval", "log", "own"):
            whole = self.steps(case, what, life=0, rank=rank)
            done: dict[int, list[Any]] = {}
            for life in numbers[1:]:
                for step, rows in self.steps(case, what, life=life, rank=rank).items():
                    before = done.get(step, [])
                    if what in ("train", "own") and not killed:
                        assert not before, f"{case}: {what} of step {step} was done twice"
                    # Only evaluations are broken off, and done anew; logs of one step may be in two lives.
                    rest = whole[step][len(before) :] if what == "log" and not killed else whole[step]
                    assert rows == rest[: len(rows)], f"{case}: {what} of step {step} in life {life}"
                    done[step] = before + rows if what == "log" and not killed else rows
            assert done == whole, f"{case}: not all of {what} was done"
        plain, ours = self.all(case, "end", life=0, rank=rank)[0], self.last(case, rank=rank)
        assert ours["is"] == plain["is"], case
        assert ours["returned"] == plain["returned"], case
        assert ours["code"] == 0

    def executed(self, case: str, *, rank: int = 0) -> list[int]:
        """Return the number of each optimizer step that was done, in all lives but the one without us."""
        rows = [row for row in self.all(case, "train", rank=rank) if row["life"]]
        return [key[1] for key, _ in groupby(rows, lambda row: (row["life"], row["step"]))]


def _bare(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in _NAMES}
