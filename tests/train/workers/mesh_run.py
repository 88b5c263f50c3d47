# SPDX-License-Identifier: Apache-2.0
"""One rank of a training run on meshes of several kinds, as `sharded_run` plays the plain ones.

`mesh_run.py OUT plain|mesh VERB...`; the verbs of `sharded_run`, and `kind=KIND`: all anew on that mesh;
`seed`: as programs do, the same for ranks that see the same data; `draw`: tell what chance gives.
Hidden sizes and vocabulary divide by no number of ranks, so shards are uneven, and some ranks hold nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from spotwatch.errors import SpotwatchError
from spotwatch.train.ranks.sharded import Sharded
from spotwatch.train.state.staging import Staging
from spotwatch.train.state.state import State
from tests.train.workers.sharded_run import Position, Run

BATCH, LENGTH, VOCABULARY = 8, 4, 11


class Net(torch.nn.Module):
    """A transformer's skeleton, without what costs time."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, 10)
        self.norm = torch.nn.LayerNorm(10)
        self.up = torch.nn.Linear(10, 13)
        self.down = torch.nn.Linear(13, 10)
        self.gate = torch.nn.Linear(10, 3)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.head = torch.nn.Linear(10, VOCABULARY, bias=False)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mean loss over all tokens but for their number."""
        hidden = self.embed(tokens)
        hidden = hidden + self.down(torch.relu(self.up(self.norm(hidden))))
        logits = self.head(hidden) * self.scale
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        return loss + 0.1 * self.gate(hidden).square().mean()  # type: ignore[no-any-return]


def tensor_parallel(net: Net, mesh: DeviceMesh) -> None:
    """Spread the model over a mesh of one dimension, as torch's tutorial does."""
    plan: dict[str, Any] = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
        "down": RowwiseParallel(output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        "gate": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(net, mesh, plan)


def arranged(net: Net, kind: str) -> tuple[int, int]:
    """Spread the model as `kind` says; return which of how many parts of a batch this rank takes."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    if kind == "plain":
        return 0, 1
    dims = {"2x2": ("dp", "tp"), "hsdp": ("replicate", "shard")}.get(kind)
    shape = (ranks,) if dims is None else (2, ranks // 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=dims)
    if kind == "tp":
        tensor_parallel(net, mesh)
        return 0, 1
    data = mesh
    if kind == "2x2":
        tensor_parallel(net, mesh["tp"])
        data = mesh["dp"]
    fully_shard(net.up, mesh=data)
    fully_shard(net, mesh=data)
    return (data.get_local_rank(), 2) if kind == "2x2" else (dist.get_rank(), ranks)


class MeshRun(Run):
    """A model on a mesh, what trains it, and what saves it."""

    mesh_kind = "plain"

    def begin(self, width: int) -> None:
        """Make everything anew; `width` is of no matter here."""
        del width
        torch.manual_seed(next_seed())
        net = Net()
        self.part, self.parts = arranged(net, self.mesh_kind)
        self.model = net
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, gamma=0.5)
        self.position = Position()
        self.generator = torch.Generator().manual_seed(7)
        self.state = State(Staging())
        self.state.track(
            {
                "model": net,
                "optimizer": self.optimizer,
                "scheduler": self.scheduler,
                "position": self.position,
                "generator": self.generator,
            }
        )
        self.sharded = Sharded(self.state, Staging(), self.world, insists=self.insists)

    def train(self, steps: int) -> list[str]:
        """Take steps, each on its share of a batch that is the same on every mesh; return the mean losses."""
        losses = []
        for _ in range(steps):
            tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=self.generator)
            loss = self.model(tokens.chunk(self.parts)[self.part])
            self.optimizer.zero_grad()
            loss.backward()
            for parameter in self.model.parameters():
                if isinstance(
                    parameter.grad, DTensor
                ):  # of an uneven embedding, or of norms, it is another's
                    parameter.grad = parameter.grad.redistribute(placements=parameter.placements)
            self.optimizer.step()
            self.scheduler.step()
            self.position.at += 1
            mean = loss.detach().double()
            if dist.is_initialized():
                dist.all_reduce(mean)
                mean /= dist.get_world_size()
            losses.append(mean.item().hex())
        return losses

    def obey(self, verb: str) -> None:
        """Carry out one verb."""
        name, _, value = verb.partition("=")
        match name:
            case "kind":
                self.mesh_kind = value.partition("#")[0]
                self.begin(0)
            case "seed":
                self.generator.manual_seed(50 + self.part)
                torch.manual_seed(60 + self.part)
            case "draw":
                drawn = torch.rand((), generator=self.generator), torch.rand(())
                self.told[verb] = [one.item() for one in drawn]
            case _:
                super().obey(verb)


_SEEDS = iter(range(100, 1000))


def next_seed() -> int:
    """Return another seed each time, the same on all ranks, so that nothing is right by chance."""
    return next(_SEEDS)


def main() -> None:
    """Do what the command line says."""
    out, kind, *verbs = sys.argv[1:]
    run = MeshRun(kind)
    for verb in verbs:
        try:
            run.obey(verb)
        except SpotwatchError as problem:
            run.told[verb] = f"{type(problem).__name__}: {problem}"
    Path(f"{out}.{run.world.rank}").write_text(json.dumps(run.told), encoding="utf-8")
    run.world.close()
    if kind != "plain":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
