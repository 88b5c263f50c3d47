# SPDX-License-Identifier: Apache-2.0
"""Runs a script as several ranks, as torchrun would, but forked from one process that has imported torch.

`launch.py RANKS SCRIPT ARGUMENT...`; exits with the first status of a rank that is not 0. MASTER_ADDR and
MASTER_PORT say where they meet. On a busy machine this is several times faster than torchrun, of which a few
other tests make sure.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback

import torch
import torch.distributed.checkpoint
import torch.distributed.fsdp


def main() -> int:
    """Fork the ranks and wait for all of them."""
    ranks, script, *arguments = sys.argv[1:]
    torch.set_num_threads(1)
    children = []
    for rank in range(int(ranks)):
        pid = os.fork()
        if pid == 0:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=ranks)
            sys.argv = [script, *arguments]
            os._exit(_run(script))
        children.append(pid)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return next((status for status in statuses if status), 0)


def _run(script: str) -> int:
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # noqa: BLE001 - a child must never return into the launcher
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
