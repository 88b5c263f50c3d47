# SPDX-License-Identifier: Apache-2.0
"""What `Checkpointer.step` costs when nothing is due: nanoseconds, against an empty loop.

It saves nothing. Run it on a quiet machine: `python benchmarks/step_overhead.py`; prints one JSON document.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from spotwatch.train import Checkpointer

CALLS = 200_000
ROUNDS = 15


class Nothing:
    """The least that can be tracked."""

    def state_dict(self) -> dict[str, int]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take nothing."""


def nanoseconds(call: Callable[[int], object]) -> list[float]:
    """Return the cost of one call in each round."""
    rounds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter_ns()
        for step in range(CALLS):
            call(step)
        rounds.append((time.perf_counter_ns() - begun) / CALLS)
    return rounds


def empty(step: int) -> None:
    """Do nothing, as a loop without checkpoints would."""


def main() -> None:
    """Measure alternately and print."""
    with tempfile.TemporaryDirectory() as scratch:
        runtime = Path(scratch, "runtime")
        runtime.mkdir(mode=0o700)
        environ = {"SPOTWATCH_RUNTIME_DIR": str(runtime)}
        result: dict[str, object] = {"calls": CALLS, "rounds": ROUNDS}
        result["empty_ns"] = statistics.median(nanoseconds(empty))
        for name, every_steps in (("steps", 10**9), ("auto", None)):
            checkpointer = Checkpointer(
                Path(scratch, name), run_id="bench", environ=environ, every_steps=every_steps
            )
            checkpointer.track(nothing=Nothing())
            checkpointer.resume()
            with checkpointer:
                measured = nanoseconds(checkpointer.step)
            result[f"step_{name}_ns"] = {
                "median": statistics.median(measured),
                "least": min(measured),
                "most": max(measured),
            }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
