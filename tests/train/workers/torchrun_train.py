# SPDX-License-Identifier: Apache-2.0
"""A whole training program of several ranks, as users write it.

`torchrun_train.py OUT STORE RUNTIME KIND TOTAL`; KIND is `plain`, `ddp`, `fsdp`, or `loose`: models that are
not joined, and half as many steps on the second rank. Each rank hears a daemon of its own, in RUNTIME/RANK,
as if it were a machine of its own; and writes to OUT.RANK at its end where it began, where it left, with
which status, and every loss.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from spotwatch.train import Checkpointer

EVERY_STEPS = 50


class Count:
    """What each rank counts for itself."""

    def __init__(self) -> None:
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        """Return it."""
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self.at = state["at"]


def goes_on(ck: Checkpointer, step: int) -> object:
    """Take a step that should not be taken any more, and return the status with which that is ended."""
    try:
        ck.step(step)
    except SystemExit as end:
        return end.code
    return None


def main() -> int:
    """Train."""
    out, store, runtime, kind, total = sys.argv[1:]
    rank = 0
    if kind != "plain":
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    torch.manual_seed(7)
    plain = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Dropout(0.2), torch.nn.Linear(10, 3))
    model: Any = plain
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(plain)
    elif kind == "fsdp":
        fully_shard(plain, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    torch.manual_seed(1000 + rank)
    count = Count()
    machine = Path(runtime) / str(rank)
    machine.mkdir(mode=0o700, parents=True, exist_ok=True)
    environ = os.environ | {"LOCAL_RANK": "0", "SPOTWATCH_RUNTIME_DIR": str(machine)}
    ck = Checkpointer(store, run_id="run", keep=100, every_steps=EVERY_STEPS, environ=environ)
    ck.track(model=plain, optimizer=optimizer, generator=generator, count=count)
    began = step = ck.resume()
    until = int(total) // (2 if kind == "loose" and rank else 1)
    losses: dict[int, str] = {}
    ended = None
    with ck:
        while step < until:
            time.sleep(0.005)
            loss = model(torch.randn(4, 6, generator=generator)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            count.at += 1
            losses[step] = loss.detach().double().item().hex()
            if ck.step(step):
                ended = goes_on(ck, step + 1) if kind == "ddp" else None
                break
    told = {"began": began, "left": step, "status": ck.exit_code, "count": count.at, "losses": losses}
    told["ended"] = ended
    Path(f"{out}.{rank}").write_text(json.dumps(told), encoding="utf-8")
    if kind != "plain":
        dist.destroy_process_group()
    return ck.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
