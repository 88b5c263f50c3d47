# SPDX-License-Identifier: Apache-2.0
"""Ends sixty trainings over gloo one after the other, each as programs do: group first, model afterwards.

With a long switch interval a thread of gloo's that wants the interpreter's lock gets it only where the
program waits, so that torch's deadlock strikes within a few trainings instead of once in some dozen runs.
"""

from __future__ import annotations

import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn

from spotwatch.train.ranks.group import Group

ROUNDS = 60


def train(rendezvous: str) -> None:
    """Train for two steps, and leave the model to be freed once the groups are gone."""
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1)
    Group().close()
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    for _ in range(2):
        model(torch.ones(4, 8)).sum().backward()
    dist.destroy_process_group()


def main() -> None:
    """Train again and again, and say so at the end."""
    sys.setswitchinterval(1000)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS):
            train(f"{folder}/{number}")
    sys.stdout.write(f"{ROUNDS} ended\n")


if __name__ == "__main__":
    main()
