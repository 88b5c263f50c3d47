# SPDX-License-Identifier: Apache-2.0
"""The trainer of `restore.py`: a fresh process that restores once, by the tutorial's way or by ours.

As after a reclaim it has a model with values of its own, no optimizer state, and has imported torch alone:
what a way has to import besides is counted as restoring. Commands, as in `_save_worker.py`: begin, restore,
end.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import ExitStack
from typing import Any

from _save_worker import BUCKET, EVERY_STEPS, RUN
from _training import SIZES, Training
from _tutorial import Tutorial


def by_tutorial(training: Training, _: ExitStack) -> int:
    """Restore by the tutorial's way and return the step."""
    return Tutorial(BUCKET, "tutorial").restore(training.model, training.optimizer)


def by_ours(training: Training, later: ExitStack) -> int:
    """Restore by ours and return the step; `later` ends the run, so that the next process need not wait."""
    from spotwatch.train import Checkpointer  # noqa: PLC0415 - importing it is a part of what is timed

    ck = Checkpointer(f"s3://{BUCKET}/ours", run_id=RUN, every_steps=EVERY_STEPS)
    ck.track(model=training.model, optimizer=training.optimizer)
    step = ck.resume()
    later.enter_context(ck)
    later.callback(ck.step, step)
    return step


WAYS = {"tutorial": by_tutorial, "ours": by_ours}


def main() -> None:
    """Carry out commands until stdin ends."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", choices=SIZES, required=True)
    parser.add_argument("--way", choices=WAYS, required=True)
    options = parser.parse_args()
    training = Training(SIZES[options.size], seed=2, stepped=False)
    later = ExitStack()

    def begin() -> dict[str, Any]:
        return {"tensor_bytes": training.tensor_bytes}

    def restore() -> dict[str, Any]:
        begun = time.perf_counter()
        step = WAYS[options.way](training, later)
        return {"seconds": time.perf_counter() - begun, "step": step}

    def end() -> dict[str, Any]:
        later.close()
        return {"digest": training.digest(), "tensor_bytes": training.tensor_bytes}

    for line in sys.stdin:
        print(json.dumps({"begin": begin, "restore": restore, "end": end}[line.strip()]()), flush=True)


if __name__ == "__main__":
    main()
