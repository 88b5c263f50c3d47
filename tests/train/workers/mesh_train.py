# SPDX-License-Identifier: Apache-2.0
"""One rank of a whole training program on a mesh of two dimensions, FSDP2 over tensor parallelism.

`mesh_train.py STORE TRACE KIND TOTAL EVERY RATE`: saves every so many steps, uploads so many bytes a second
(0: all it can). Each rank hears a daemon of its own, below `SPOTWATCH_RUNTIME_DIR`, as if it were a machine,
and notes each step with its process id and the loss, and at last where it left, with which status.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from spotwatch.train import Checkpointer
from tests.train.integrations.lives import note
from tests.train.workers.mesh_run import BATCH, LENGTH, VOCABULARY, Net, arranged


def main() -> int:
    """Train."""
    store, trace, kind, total, every, rate = sys.argv[1:]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(11)
    model = Net()
    part, parts = arranged(model, kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(5)
    machine = Path(os.environ["SPOTWATCH_RUNTIME_DIR"]) / str(rank)
    machine.mkdir(mode=0o700, exist_ok=True)
    environ = os.environ | {"LOCAL_RANK": "0", "SPOTWATCH_RUNTIME_DIR": str(machine)}
    ck = Checkpointer(
        store,
        run_id="run",
        keep=100,
        every_steps=int(every),
        most_bytes_per_second=float(rate) or None,
        environ=environ,
    )
    ck.track(model=model, optimizer=optimizer, generator=generator)
    step = ck.resume()
    with ck:
        while step < int(total):
            tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator)
            loss = model(tokens.chunk(parts)[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            note(trace, rank=rank, pid=os.getpid(), step=step, loss=loss.detach().double().item().hex())
            if ck.step(step):
                break
    note(trace, rank=rank, left=step, status=ck.exit_code)
    dist.destroy_process_group()
    return ck.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
