# SPDX-License-Identifier: Apache-2.0
"""A small trainer that says each step's loss to the last bit, and at the end what its weights are.

It is a user's program, with dropout, a scheduler and a loader; what fails is up to the test. A few options
make waits shorter or things happen at a known step.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spotwatch.train import Checkpointer, ResumableLoader, digest, parts
from spotwatch.train.stores import s3_bucket


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    """Forty samples with chance in them."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((16,), index / 40) + 0.1 * torch.randn(16)


def main() -> int:
    """Train and return the exit status."""
    args = parse()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    parts.LEAST_PART_BYTES = args.part_mib * 2**20
    if args.tries:
        defaults: dict[str, Any] = s3_bucket.Bucket.__init__.__kwdefaults__ or {}
        defaults["tries"] = args.tries
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    torch.manual_seed(0)
    width = args.width
    model: nn.Module = nn.Sequential(
        *(nn.Linear(16, width), nn.GELU(), nn.Dropout(0.1)),
        *(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, 16)),
    )
    if ranks > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.total)
    rank = int(os.environ.get("RANK", "0"))
    loader = ResumableLoader(
        Samples(), 8 // ranks, shuffle=True, num_workers=args.workers, rank=rank, world_size=ranks
    )

    ck = Checkpointer(
        args.url,
        run_id=args.run_id,
        every_steps=args.every,
        blocking=args.blocking,
        patience_seconds=args.patience_seconds,
        lease_seconds=args.lease_seconds,
    )
    ck.track(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
    step = ck.resume()
    say(rank, "resumed", step)
    batches: Iterator[Any] = loader.forever()
    if 0 in args.hold_at:
        say(rank, "holds", 0)
        hold(ck, args.release / "0", all_ranks=ranks > 1)
    with ck:
        while step < args.total:
            batch = next(batches)
            loss = nn.functional.mse_loss(model(batch), batch.roll(1, dims=1))
            if step + 1 == args.nan_at:
                loss = loss * float("nan")
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            optimizer.step()
            scheduler.step()
            step += 1
            say(rank, "step", step, float(loss.detach()).hex())
            time.sleep(args.step_seconds)
            if ck.step(step, healthy=lambda: bool(loss.isfinite())):  # noqa: B023 - asked within the call
                break
            if step in args.hold_at:
                say(rank, "holds", step)
                hold(ck, args.release / str(step), all_ranks=ranks > 1)
        say(rank, "left", step)
    if ck.exit_code == 0:
        say(rank, "digest", digest(getattr(model, "module", model)))
    return ck.exit_code


def hold(ck: Checkpointer, release: Path, *, all_ranks: bool) -> None:
    """Take no further step until a file is there, or this rank is told to stop."""
    while not release.exists():
        # A rank that goes on alone would wait for the others in its next step; there all wait for the file.
        if not all_ranks and ck.poll():
            return
        time.sleep(0.01)


def say(rank: int, *words: object) -> None:
    """Print a line for the test, in one piece: other ranks print too."""
    os.write(1, f"rank {rank}: {' '.join(map(str, words))}\n".encode())


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--run-id", default="run")
    parser.add_argument("--total", type=int, default=12)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--width", type=int, default=1000, help="1000 makes 12.4 MB, 3185 makes 123 MB")
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--part-mib", type=int, default=5)
    parser.add_argument("--tries", type=int, help="of each request of boto3's")
    parser.add_argument("--patience-seconds", type=float, default=60.0)
    parser.add_argument("--lease-seconds", type=float, default=60.0)
    parser.add_argument("--nan-at", type=int, help="the step whose loss is not finite")
    parser.add_argument("--blocking", action="store_true")
    parser.add_argument("--hold-at", type=int, nargs="+", default=[], help="the steps after which to wait")
    parser.add_argument("--release", type=Path, help="where a file named like the step ends the wait")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
