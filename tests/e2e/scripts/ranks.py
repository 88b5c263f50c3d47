# SPDX-License-Identifier: Apache-2.0
"""Two ranks that train together under torchrun, rank 0 saving through the library, both obeying a stop.

Usage: torchrun --nproc-per-node 2 ranks.py STORE LOG
"""

import os
import sys
import time

import torch
import torch.distributed as dist

from spotwatch.train import Checkpointer

STORE, LOG = sys.argv[1:3]
RANK = int(os.environ["RANK"])


def note(what: str) -> None:
    """Append one line to the log."""
    with open(LOG, "a", encoding="ascii") as file:  # noqa: PTH123 - as people write it
        file.write(f"rank {RANK} {what}\n")


dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
parallel = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
# Until many ranks are one Checkpointer's business, each rank saves a run of its own.
checkpointer = Checkpointer(STORE, run_id=f"ranks-{RANK}", every_steps=1000, world_size=1)
checkpointer.track(model=model, optimizer=optimizer)
step = checkpointer.resume()
note(f"resumed at {step} pid {os.getpid()}")
with checkpointer:
    while step < 100_000:
        loss = parallel(torch.ones(2, 4) * step).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(0.005)
        is_told = torch.tensor(int(checkpointer.step(step)))
        dist.all_reduce(is_told, op=dist.ReduceOp.MAX)
        if is_told:
            break
note(f"left at {step} code {checkpointer.exit_code}")
dist.destroy_process_group()
sys.exit(checkpointer.exit_code)
