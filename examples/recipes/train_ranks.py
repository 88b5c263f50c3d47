# SPDX-License-Identifier: Apache-2.0
"""The example trainer on many ranks: data parallel, any launcher that sets RANK and WORLD_SIZE, any number.

Each step's batch is a function of the step, and each rank takes its share of it, so that a run may go on with
another number of ranks. The lines of spotwatch are those of one rank; ranks agree by themselves.

    torchrun --nproc-per-node 2 train_ranks.py --url s3://bucket/checkpoints --run-id sweep-01
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from spotwatch.train import Checkpointer  # <- spotwatch

_BATCH = 32


def batch(step: int, rank: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's share of the inputs and targets of one step."""
    chance = torch.Generator().manual_seed(step)
    inputs = torch.randn(_BATCH, 16, generator=chance)
    share = inputs[rank * _BATCH // ranks : (rank + 1) * _BATCH // ranks]
    return share, share.roll(1, dims=1)


def main() -> int:
    """Train and return the exit status."""
    args = parse()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)).to(device)
    model = nn.parallel.DistributedDataParallel(plain, device_ids=[device.index] if on_gpu else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    checkpointer = Checkpointer(args.url, run_id=args.run_id, every_steps=args.every_steps)  # <- spotwatch
    checkpointer.track(model=plain, optimizer=optimizer)  # <- spotwatch
    step = checkpointer.resume()  # <- spotwatch, on all ranks

    with checkpointer:  # <- spotwatch
        while step < args.total_steps:
            inputs, targets = batch(step, rank, ranks)
            loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            optimizer.step()
            step += 1
            time.sleep(args.step_seconds)
            note(args.trace, step, rank, ranks)
            if rank == 0 and step % 50 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if checkpointer.step(step):  # <- spotwatch: True on all ranks at the same step
                break

    dist.destroy_process_group()
    return checkpointer.exit_code  # <- spotwatch: 0 finished, 75 stopped and durable, 76 stopped and not


def note(trace: Path | None, step: int, rank: int, ranks: int) -> None:
    """Append the step and this rank to a file, for those who count steps from outside."""
    if trace is not None:
        with trace.open("a", encoding="ascii") as file:
            file.write(f"{step} {rank} {ranks}\n")


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="checkpoints", help="where to save: a path, s3://, gs://, az://")
    parser.add_argument("--run-id", default="example", help="the same in every start of this run")
    parser.add_argument("--total-steps", type=int, default=500)
    parser.add_argument("--every-steps", type=int, help="save at each multiple; else as often as is best")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="make each step last longer")
    parser.add_argument("--trace", type=Path, help="append 'STEP RANK RANKS' for each executed step")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
