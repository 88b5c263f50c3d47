# SPDX-License-Identifier: Apache-2.0
"""Whole trainings with transformers' Trainer, of which every batch, log and end is noted.

`transformers_run.py BASE TRACE CASES`: CASES is JSON, a list of cases, each with lives. They are forked from
this process one after the other, for importing the libraries takes longer than training. The store of a case
is BASE/NAME/store; a life with `"plain": true` has neither store nor callback. Under a launcher each rank
forks its own lives.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

from tests.train.integrations.lives import note
from tests.train.integrations.workers.transformers_world import RANK, be_quiet, end, make


def live(case: dict[str, Any], life: dict[str, Any], base: Path, trace: str) -> int:
    """Live one life; return its status."""
    runtime = base / case["name"] / f"runtime-{life['names']['life']}"
    runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ["SPOTWATCH_RUNTIME_DIR"] = str(runtime)
    if "removes" in life:
        shutil.rmtree(base / case["name"] / life["removes"])
    trainer = make(case, life, base, trace)
    status, output = 0, None
    try:
        output = trainer.train(**life.get("train", {}))
    except SystemExit as leaving:
        status = int(leaving.code or 0)
    note(trace, **life["names"], what="end", **end(trainer, status, output))
    return status


def fork(case: dict[str, Any], life: dict[str, Any], base: Path, trace: str) -> int:
    """Live it in a child; return its status, or minus the signal that has ended it."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        if any(event[2] == "GROUP" for event in life.get("events", [])):
            os.setpgid(0, 0)  # what is sent to a life's group is not for this worker and the lives after it
        try:
            status = live(case, life, base, trace)
        except BaseException:  # noqa: BLE001 - a child must never return into its parent
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> int:
    """Fork the lives of all cases."""
    base, trace, cases = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    be_quiet()
    # A Trainer collects garbage when it begins: with all of the libraries in it, that is most of a life.
    gc.freeze()
    for case in cases:
        for number, life in enumerate(case["lives"]):
            if "MASTER_PORT" in os.environ:
                # Not all ranks may be through with the life before.
                os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
            life["names"] = {"case": case["name"], "life": number, "rank": RANK}
            note(trace, **life["names"], what="exit", status=fork(case, life, base, trace))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
