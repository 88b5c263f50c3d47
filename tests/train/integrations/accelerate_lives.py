# SPDX-License-Identifier: Apache-2.0
"""Runs of Accelerate over several lives, made by one process a call, and what they have noted.

What a life does is in `workers/accelerate_run.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.train.integrations.lives import HERE
from tests.train.launching import clean_environ

ROOT = Path(__file__).parents[3]
_SECONDS = 550


@dataclass(frozen=True)
class Lived:
    """A run that is over."""

    folder: Path

    @property
    def codes(self) -> list[list[int]]:
        """Return how each life ended, by rank."""
        return [row["codes"] for row in _rows(self.folder / "codes")]

    def rows(self, rank: int = 0) -> list[dict[str, Any]]:
        """Return what a rank has done, over all lives."""
        return [row for row in _rows(self.folder / f"trace.{rank}") if "begins" not in row]

    def losses(self, rank: int = 0) -> list[dict[str, Any]]:
        """Return a row for each batch that a rank has trained on."""
        return [row for row in self.rows(rank) if "loss" in row]

    def lives(self, rank: int = 0) -> list[list[dict[str, Any]]]:
        """Return these rows of each life."""
        found: list[list[dict[str, Any]]] = []
        for row in _rows(self.folder / f"trace.{rank}"):
            if "begins" in row:
                found.append([])
            elif "loss" in row:
                found[-1].append(row)
        return found

    def begins(self, rank: int = 0) -> list[int]:
        """Return the step that each life has begun at."""
        return [row["begins"] for row in self._beginnings(rank)]

    def sharded(self, rank: int = 0) -> list[bool]:
        """Tell of each life whether its model was spread over the processes."""
        return [row["sharded"] for row in self._beginnings(rank)]

    def _beginnings(self, rank: int) -> list[dict[str, Any]]:
        return [row for row in _rows(self.folder / f"trace.{rank}") if "begins" in row]


def live_all(base: Path, cases: list[dict[str, Any]]) -> dict[str, Lived]:
    """Live all lives of all cases, one after the other."""
    (base / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(HERE / "accelerate_run.py"), str(base / "runs"), str(base / "cases.json")],
        cwd=ROOT,
        env=clean_environ() | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=_SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 0, output
    return {case["name"]: Lived(base / "runs" / case["name"]) for case in cases}


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in path.read_text(encoding="utf-8").splitlines()]
