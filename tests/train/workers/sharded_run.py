# SPDX-License-Identifier: Apache-2.0
"""One rank of a small training run that saves and restores through `Sharded` alone, and says what it holds.

`sharded_run.py OUT KIND VERB...`; KIND is `plain`, `ddp` or `fsdp`. The verbs are carried out in turn:
`root=PATH` (where checkpoints lie), `train=STEPS`, `save=STEP`, `restore`, `insist=1`, `note=NAME` (tell what
is held now), `begin=WIDTH` (all anew, with a model so wide), `skew` (the ranks track different models),
`uneven` (a loader's position differs by rank), `differ` (a model's values do), `log=NAME` (tell the warnings
since the last time). What fails is told under the verb, and the next one follows; `#` and more make a verb a
name of its own.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from spotwatch.errors import SpotwatchError
from spotwatch.train.publication import make_durable
from spotwatch.train.ranks.ranks import open_world
from spotwatch.train.ranks.sharded import Sharded
from spotwatch.train.registry.registry import Registry
from spotwatch.train.state import tensors
from spotwatch.train.state.staging import Staging
from spotwatch.train.state.state import State
from spotwatch.train.stores.directory import DirectoryStore


def _unheard(_: object) -> None:
    """Hear of progress, and do nothing about it."""


class Position:
    """A loader's position, with a tensor in it as loaders have."""

    def __init__(self) -> None:
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        """Return it."""
        return {"at": self.at, "table": torch.arange(4) + self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self.at = state["at"]


class Heard(logging.Handler):
    """Keeps the warnings of the library."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take one down."""
        self.said.append(record.getMessage())


class Run:
    """A model, what trains it, and what saves it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        if kind != "plain":
            dist.init_process_group("gloo")
        self.world = open_world(os.environ)
        self.root = Path()
        self.insists = False
        self.told: dict[str, Any] = {}
        self.heard = Heard()
        logging.getLogger("spotwatch.train").addHandler(self.heard)
        self.begin(10)

    def begin(self, width: int) -> None:
        """Make everything anew, as a process that has just started; what it holds differs from run to run."""
        # Ten and three rows do not divide by four: the last rank has less, or nothing.
        self.model: Any = torch.nn.Sequential(
            torch.nn.Linear(6, width),
            torch.nn.BatchNorm1d(width),
            torch.nn.Dropout(0.3),
            torch.nn.Linear(width, 3),
        )
        tracked: Any = self.model
        if self.kind == "ddp":
            self.model = torch.nn.parallel.DistributedDataParallel(self.model)
        elif self.kind == "fsdp":
            mesh = init_device_mesh("cpu", (self.world.size,))
            fully_shard(self.model[0], mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, gamma=0.5)
        self.position = Position()
        self.generator = torch.Generator().manual_seed(self.world.rank)
        self.state = State(Staging())
        self.state.track(
            {
                "model": tracked,
                "optimizer": self.optimizer,
                "scheduler": self.scheduler,
                "position": self.position,
                "generator": self.generator,
            }
        )
        self.sharded = Sharded(self.state, Staging(), self.world, insists=self.insists)

    def train(self, steps: int) -> list[str]:
        """Take steps on random batches, of each rank's own; return the losses, exactly."""
        losses = []
        for _ in range(steps):
            batch = torch.randn(4, 6, generator=self.generator)
            loss = self.model(batch).square().mean() * (1 + random.random())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.position.at += 1
            losses.append(loss.detach().double().item().hex())
        return losses

    def save(self, step: int) -> dict[str, int]:
        """Make a checkpoint; return how many bytes this rank has written."""
        snapshot = self.sharded.capture()
        make_durable(self.registry, self.world, step, snapshot, _unheard, _unheard, healthy=True)
        return {"size_bytes": snapshot.body.size_bytes}

    def restore(self) -> str:
        """Take the checkpoint that LATEST names."""
        latest = self.registry.latest()
        if latest is None:
            raise SystemExit("nothing was saved")
        self.sharded.restore(self.registry.manifest(latest.dir), self.registry, lambda: None)
        return latest.dir

    def skew(self) -> None:
        """Try to save models that differ by rank."""
        state = State(Staging())
        state.track({"model": torch.nn.Linear(2, 2 + self.world.rank)})
        Sharded(state, Staging(), self.world).check()

    def note(self) -> dict[str, Any]:
        """Return a checksum of each whole tensor, and all else; of the same form for any kind."""
        _, flat = self.state.encode(sharded=True)
        sums = {}
        for name, tensor in flat.items():
            whole: Any = (
                tensor.full_tensor() if isinstance(tensor, torch.distributed.tensor.DTensor) else tensor
            )
            sums[name] = f"{zlib.crc32(tensors.raw_bytes(whole)):08x}"
        rates = [group["lr"] for group in self.optimizer.param_groups]
        return {"tensors": sums, "at": self.position.at, "rates": rates}

    @property
    def registry(self) -> Registry:
        """Return the run's checkpoints."""
        registry = Registry(DirectoryStore(self.root), "run")
        registry.writer = "test"
        return registry

    def obey(self, verb: str) -> None:  # noqa: C901, PLR0912 - a list of verbs
        """Carry out one verb."""
        name, _, value = verb.partition("=")
        value, _, _ = value.partition("#")
        result: Any = None
        match name:
            case "root":
                self.root = Path(value)
            case "train":
                result = self.train(int(value))
            case "save":
                result = self.save(int(value))
            case "restore":
                result = self.restore()
            case "insist":
                self.insists = True
                self.begin(10)
            case "begin":
                self.begin(int(value))
            case "skew":
                self.skew()
            case "uneven":
                self.position.at += 100 * self.world.rank
            case "differ":
                with torch.no_grad():
                    torch._foreach_add_([*self.model.parameters()], 0.1 * self.world.rank)
            case "log":
                result, self.heard.said = self.heard.said, []
            case "note":
                result = self.note()
            case _:
                raise SystemExit(f"no verb {verb!r}")
        if result is not None:
            self.told[verb] = result


def main() -> None:
    """Do what the command line says."""
    out, kind, *verbs = sys.argv[1:]
    run = Run(kind)
    torch.manual_seed(1000 + run.world.rank)
    random.seed(run.world.rank)
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
