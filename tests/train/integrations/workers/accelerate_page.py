# SPDX-License-Identifier: Apache-2.0
"""Runs a program of a page over two lives and once straight, all forked from one process.

`accelerate_page.py PROGRAM FOLDER`: in the first life it is told to stop in its 13th optimizer step. What
each life printed is in FOLDER/NAME; the statuses are printed.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import accelerate  # noqa: F401 - each life would import it on its own, for seconds
import torch
import torch._dynamo  # likewise
import torch.distributed.fsdp
from torch.optim.optimizer import register_optimizer_step_post_hook


def main() -> None:
    """Live them all."""
    program, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    statuses = []
    for name, run_id, at in (("straight", "straight", 0), ("first", "stopped", 13), ("second", "stopped", 0)):
        pid = os.fork()
        if pid == 0:
            os.environ["SPOTWATCH_RUN_ID"] = run_id
            with (folder / name).open("w") as output:
                os.dup2(output.fileno(), sys.stdout.fileno())
            os._exit(_lived(program, at))
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    sys.stdout.write(f"{statuses}\n")


def _lived(program: str, at: int) -> int:
    steps = []

    def count(*_: Any) -> None:
        steps.append(at)
        if len(steps) == at:
            os.kill(os.getpid(), signal.SIGTERM)

    register_optimizer_step_post_hook(count)
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:  # noqa: BLE001 - a child must never return into the launcher
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    main()
