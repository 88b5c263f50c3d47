# SPDX-License-Identifier: Apache-2.0
"""The trainer of `save.py`: it saves when told, by the tutorial's way or by ours, and says how it went.

Commands come on stdin: begin, open, tutorial, ours, end; answers go to stdout, a JSON document a line. It is
written as a user writes a trainer: all it knows of spotwatch is Checkpointer and the status file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _training import SIZES, Training
from _tutorial import Tutorial

BUCKET = "bench"
RUN = "run"
EVERY_STEPS = 10_000_000
"""Saves are due at multiples of it, so that the loop saves when it is made to, by jumping there."""
_LOOK_SECONDS = 0.01
_LIMIT_SECONDS = 600.0
_LONG_SECONDS = 0.001


class Trainer:
    """One process with its state, its loop and both ways to save.

    Args:
        size: a name of `SIZES`.
    """

    def __init__(self, size: str) -> None:
        self._idle_seconds = SIZES[size].idle_seconds
        self._training = Training(SIZES[size], seed=1, stepped=True)
        self._tutorial = Tutorial(BUCKET, "tutorial")
        self._step = 0
        self._due = 0
        self._ck: Any = None
        self._stack = ExitStack()
        runtime_dir = Path(os.environ["SPOTWATCH_RUNTIME_DIR"])
        self._status = str(runtime_dir / "status" / f"{RUN}.json")
        self._told_at = 0
        self._last_told: dict[str, Any] = {}

    def begin(self) -> dict[str, Any]:
        """Say what there is to save, before spotwatch is imported."""
        return {
            "parameters": self._training.parameters,
            "tensors": self._training.tensors,
            "tensor_bytes": self._training.tensor_bytes,
            "digest": self._training.digest(),
        }

    def open(self) -> dict[str, Any]:
        """Enter the loop with a Checkpointer, as the documentation shows it, and train for a while."""
        from spotwatch.train import Checkpointer  # noqa: PLC0415 - its memory counts as ours

        begun = time.perf_counter()
        self._ck = Checkpointer(f"s3://{BUCKET}/ours", run_id=RUN, every_steps=EVERY_STEPS)
        self._ck.track(model=self._training.model, optimizer=self._training.optimizer)
        self._step = self._ck.resume()
        took = time.perf_counter() - begun
        self._due = self._step
        self._stack.enter_context(self._ck)
        return {"open_seconds": took, "idle_iterations_per_second": self._loop(self._idle_seconds)}

    def tutorial(self) -> dict[str, Any]:
        """Save by the tutorial's way."""
        self._due += EVERY_STEPS
        begun = time.perf_counter()
        name, size = self._tutorial.save(self._due, self._training.model, self._training.optimizer)
        took = time.perf_counter() - begun
        return {"stall_seconds": took, "durable_seconds": took, "size_bytes": size, "name": name}

    def ours(self) -> dict[str, Any]:
        """Save by ours: time the step that saves, then train on and watch until the status says durable."""
        idle = self._loop(self._idle_seconds)
        self._due += EVERY_STEPS
        self._step = self._due
        begun = time.perf_counter()
        self._take_step()
        stall = time.perf_counter() - begun
        later: list[float] = []
        count = 0
        while not (saved := self._saved(self._due)):
            until = time.perf_counter() + _LOOK_SECONDS
            while time.perf_counter() < until:
                self._training.iterate()
                later.append(self._take_step(1))
                count += 1
            if time.perf_counter() > begun + _LIMIT_SECONDS:
                raise SystemExit(f"not durable within {_LIMIT_SECONDS:g} s: {self._told()}")
        durable = time.perf_counter() - begun
        self._loop_until(lambda: self._told().get("phase") == "training")
        training = durable - stall
        return {
            "stall_seconds": stall,
            "later_stall_seconds": sum(took for took in later if took > _LONG_SECONDS),
            "longest_later_step_seconds": max(later, default=0.0),
            "durable_seconds": durable,
            "told_stall_seconds": saved["stall_seconds"],
            "told_save_seconds": saved["save_seconds"],
            "size_bytes": saved["size_bytes"],
            "idle_iterations_per_second": idle,
            "iterations_per_second": count / training if count else None,
            "loop_ratio": count / training / idle if count else None,
        }

    def end(self) -> dict[str, Any]:
        """Leave the loop."""
        self._stack.close()
        return {"exit_code": None if self._ck is None else self._ck.exit_code}

    def _take_step(self, more: int = 0) -> float:
        self._step += more
        begun = time.perf_counter()
        if self._ck.step(self._step):
            raise SystemExit("told to stop while being measured: is there a notice on this machine?")
        return time.perf_counter() - begun

    def _loop(self, seconds: float) -> float:
        count = 0
        begun = time.perf_counter()
        while (now := time.perf_counter()) < begun + seconds:
            self._training.iterate()
            self._take_step(1)
            count += 1
        return count / (now - begun)

    def _loop_until(self, condition: Callable[[], bool]) -> None:
        give_up_at = time.perf_counter() + _LIMIT_SECONDS
        while not condition():
            self._loop(_LOOK_SECONDS)
            if time.perf_counter() > give_up_at:
                raise SystemExit(f"not at rest within {_LIMIT_SECONDS:g} s: {self._told()}")

    def _saved(self, step: int) -> dict[str, Any]:
        told = self._told()
        if told.get("phase") == "failed":
            raise SystemExit(f"the save failed: {told.get('error')}")
        saved: dict[str, Any] = told.get("saved") or {}
        return saved if saved.get("step") == step else {}

    def _told(self) -> dict[str, Any]:
        # Looking often must not slow the loop whose speed is measured: the file is read when it has changed.
        changed_at = os.stat(self._status).st_mtime_ns  # noqa: PTH116 - ten times quicker than by pathlib
        if changed_at != self._told_at:
            with open(self._status, encoding="utf-8") as file:  # noqa: PTH123 - as above
                self._last_told = json.load(file)
            self._told_at = changed_at
        return self._last_told


def main() -> None:
    """Carry out commands until stdin ends."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", choices=SIZES, required=True)
    options = parser.parse_args()
    trainer = Trainer(options.size)
    deeds = {deed.__name__: deed for deed in (trainer.begin, trainer.open, trainer.tutorial, trainer.ours)}
    deeds["end"] = trainer.end
    for line in sys.stdin:
        print(json.dumps(deeds[line.strip()]()), flush=True)


if __name__ == "__main__":
    main()
