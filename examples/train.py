# SPDX-License-Identifier: Apache-2.0
"""A small training loop that survives the loss of its machine: start the same command again, anywhere.

The lines of spotwatch are marked with an arrow; the rest is any PyTorch program. Each batch is a function of
the step, so that a resumed run sees what an uninterrupted one would have seen.

    python examples/train.py --url s3://bucket/checkpoints --run-id sweep-01 --total-steps 2000
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from pathlib import Path

import torch
from torch import nn

from spotwatch.train import Checkpointer, digest  # <- spotwatch


def batch(step: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs and targets of one step, the same on every machine."""
    chance = torch.Generator().manual_seed(step)
    inputs = torch.randn(32, 16, generator=chance)
    return inputs.to(device), inputs.roll(1, dims=1).to(device)


def main() -> int:
    """Train and return the exit status."""
    args = parse()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 16)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.total_steps)

    checkpointer = Checkpointer(args.url, run_id=args.run_id, every_steps=args.every_steps)  # <- spotwatch
    checkpointer.track(model=model, optimizer=optimizer, scheduler=scheduler)  # <- spotwatch
    step = checkpointer.resume()  # <- spotwatch

    with checkpointer:  # <- spotwatch
        while step < args.total_steps:
            inputs, targets = batch(step, device)
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            optimizer.step()
            scheduler.step()
            step += 1
            time.sleep(args.step_seconds)
            note(args.trace, step)
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if checkpointer.step(step):  # <- spotwatch
                break

    if args.digest is not None and step >= args.total_steps:
        args.digest.write_text(digest(model) + "\n", encoding="ascii")
    return checkpointer.exit_code  # <- spotwatch: 0 finished, 75 stopped and durable, 76 stopped and not


def note(trace: Path | None, step: int) -> None:
    """Append the step and this process to a file, for those who count steps from outside."""
    if trace is not None:
        with trace.open("a", encoding="ascii") as file:
            file.write(f"{step} {os.getpid()}\n")


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--url", default="checkpoints", help="where to save: a path, file://, s3://, spaces://"
    )
    parser.add_argument(
        "--run-id", default="example", help="the same on every machine that goes on with this run"
    )
    parser.add_argument("--total-steps", type=int, default=500)
    parser.add_argument("--every-steps", type=int, help="save at each multiple; else as often as is best")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="make each step last longer")
    parser.add_argument("--trace", type=Path, help="append 'STEP PID' for each executed step")
    parser.add_argument("--digest", type=Path, help="write the SHA-256 of the final weights")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
