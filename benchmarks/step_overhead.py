# SPDX-License-Identifier: Apache-2.0
"""What `Checkpointer.step` costs when nothing is due: nanoseconds, against an empty loop.

In one process, where it looks at a few flags, and on two ranks of this machine, which must agree. It saves
nothing. Run it on a quiet machine: `python benchmarks/step_overhead.py`; prints one JSON document.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from spotwatch.train import Checkpointer

CALLS = 200_000
ROUNDS = 15
RANKS = 2
RANK_CALLS = 3_000
NAPS_SECONDS = (0.0, 0.01)
"""How long the steps of ranks take: how often they ask each other depends on it."""


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
    for turn in range(ROUNDS):
        begun = time.perf_counter_ns()
        for step in range(turn * CALLS, (turn + 1) * CALLS):
            call(step)
        rounds.append((time.perf_counter_ns() - begun) / CALLS)
    return rounds


def empty(step: int) -> None:
    """Do nothing, as a loop without checkpoints would."""


def begin(where: Path, every_steps: int | None) -> Checkpointer:
    """Return what a loop calls, before its `with`."""
    runtime = where / "runtime"
    runtime.mkdir(mode=0o700, exist_ok=True)
    environ = {"SPOTWATCH_RUNTIME_DIR": str(runtime), "WORLD_SIZE": os.environ.get("WORLD_SIZE", "1")}
    checkpointer = Checkpointer(
        where / f"every-{every_steps}", run_id="bench", environ=environ, every_steps=every_steps
    )
    checkpointer.track(nothing=Nothing())
    checkpointer.resume()
    return checkpointer


def figures(measured: list[float]) -> dict[str, float]:
    """Return what a row of the report says."""
    return {"median": statistics.median(measured), "least": min(measured), "most": max(measured)}


def call_nanoseconds(checkpointer: Checkpointer, steps: count[int], nap_seconds: float) -> list[float]:
    """Return the cost of each call where a step takes `nap_seconds`."""
    costs = []
    for _ in range(RANK_CALLS if not nap_seconds else RANK_CALLS // 10):
        time.sleep(nap_seconds)
        step = next(steps)
        begun = time.perf_counter_ns()
        checkpointer.step(step)
        costs.append(float(time.perf_counter_ns() - begun))
    return costs


def as_rank(where: Path) -> None:
    """Measure as one of several ranks, all at once; the first one prints."""
    import torch.distributed as dist  # noqa: PLC0415 - one process measures without torch

    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{where}/meeting", rank=rank, world_size=RANKS)
    result = {}
    steps = count(1)
    checkpointer = begin(where, 10**9)
    with checkpointer:
        for nap_seconds in NAPS_SECONDS:
            costs = call_nanoseconds(checkpointer, steps, nap_seconds)
            name = f"step_ranks_{RANKS}_of_{nap_seconds * 1000:.0f}_ms_ns"
            result[name] = {"mean": statistics.fmean(costs), **figures(costs)}
    if rank == 0:
        print(json.dumps(result))
    dist.destroy_process_group()


def on_ranks(where: Path) -> dict[str, object]:
    """Return what the first of several ranks has measured."""
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(where)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    told = [process.communicate()[0] for process in ranks]
    if any(process.returncode for process in ranks):
        raise SystemExit("a rank has failed")
    result: dict[str, object] = json.loads(told[0])
    return result


def main() -> None:
    """Measure alternately and print."""
    if "RANK" in os.environ:
        as_rank(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as scratch:
        result: dict[str, object] = {"calls": CALLS, "rounds": ROUNDS}
        result["empty_ns"] = statistics.median(nanoseconds(empty))
        for name, every_steps in (("steps", 10**9), ("auto", None)):
            with begin(Path(scratch), every_steps) as checkpointer:
                result[f"step_{name}_ns"] = figures(nanoseconds(checkpointer.step))
        ranks = Path(scratch, "ranks")
        ranks.mkdir()
        result |= on_ranks(ranks)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
