# SPDX-License-Identifier: Apache-2.0
"""One rank that saves and restores what is special about meshes, case by case, and says how each went.

`mesh_cases.py OUT mesh|plain ROOT CASE...`. A case is saved, made anew with other values, and restored; it is
told whether every tensor came back to the last bit, or what was raised. `plain` is one process alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from spotwatch.errors import SpotwatchError
from spotwatch.train.publication import make_durable
from spotwatch.train.ranks.ranks import open_world
from spotwatch.train.ranks.sharded import Sharded
from spotwatch.train.registry.registry import Registry
from spotwatch.train.state.staging import Staging
from spotwatch.train.state.state import State
from spotwatch.train.stores.directory import DirectoryStore

Make = Callable[[int], dict[str, Any]]
"""Returns what a program tracks; the number is that of its life, and its values differ by it."""


class Model(torch.nn.Module):
    """Parameters by name, and nothing else."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_parameter(name, torch.nn.Parameter(tensor))


class Keeper:
    """An object of the program's own that holds one tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def state_dict(self) -> dict[str, Any]:
        """Return it."""
        return {"sum": self.tensor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self.tensor = state["sum"]


class Cases:
    """The cases, on four ranks or on one."""

    def __init__(self, root: Path) -> None:
        self.world = open_world(os.environ)
        self.rank = self.world.rank
        self.root = root
        self.at = "start"
        if self.world.size > 1:
            self.line = init_device_mesh("cpu", (4,))
            self.square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            self.halves = [DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [2, 3])]

    def spread(self, life: int, shape: tuple[int, ...], mesh: DeviceMesh, *placements: Any) -> DTensor:
        """Return a random DTensor, another in each life."""
        return distribute_tensor(self.whole(life, shape), mesh, placements)

    def whole(self, life: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a random tensor, another in each life and of each shape, the same on all ranks."""
        return torch.randn(shape, generator=torch.Generator().manual_seed(life * 1000 + sum(shape)))

    def trained(self, life: int, kind: type[torch.optim.Optimizer], model: Model, **options: Any) -> Any:
        """Return an optimizer that has taken a step in the first life, and is fresh in the others."""
        optimizer = kind(model.parameters(), **options)
        if life == 1:
            for parameter in model.parameters():
                parameter.grad = parameter.detach() * 2
            optimizer.step()
        return optimizer

    def submesh(self, life: int) -> dict[str, Any]:
        """An expert that only the last two ranks have a part of, beside what all have."""
        expert = self.spread(life, (5, 3), self.halves[1], Shard(0))
        return {"model": Model(all=self.spread(life, (7, 3), self.line, Shard(0)), expert=expert)}

    def stages(self, life: int) -> dict[str, Any]:
        """A pipeline of two stages, each spread over two ranks; one process has both."""
        if self.world.size == 1:
            models = {stage: Model(weight=self.whole(life, (5, 3 + stage))) for stage in range(2)}
        else:
            stage = self.rank // 2
            weight = self.spread(life, (5, 3 + stage), self.halves[stage], Shard(0))
            models = {stage: Model(weight=weight)}
        result: dict[str, Any] = {}
        for stage, model in models.items():
            result[f"stage{stage}"] = model
            result[f"optimizer{stage}"] = self.trained(life, torch.optim.AdamW, model)
        return result

    def plain_stages(self, life: int) -> dict[str, Any]:
        """A pipeline of four stages of plain tensors, one on each rank."""
        model = Model(weight=self.whole(life * 10 + self.rank, (3, 2)))
        optimizer = self.trained(life, torch.optim.SGD, model, lr=0.1, momentum=0.9)
        return {f"stage{self.rank}": model, f"optimizer{self.rank}": optimizer}

    def buffers(self, life: int) -> dict[str, Any]:
        """Two stages of plain tensors, each whole on two ranks, and in each a buffer that differs by rank."""
        stage = self.rank // 2
        model = Model(weight=self.whole(life * 10 + stage, (3, 2)))
        model.register_buffer("seen", torch.full((2,), life * 10.0 + self.rank))
        return {f"stage{stage}": model}

    def tied(self, life: int) -> dict[str, Any]:
        """A weight that two layers share."""
        model = Model(first=self.spread(life, (5, 3), self.line, Shard(0)))
        model.register_parameter("second", model.first)  # type: ignore[arg-type]  # it is a parameter
        return {"model": model}

    def number(self, life: int) -> dict[str, Any]:
        """A parameter that is one number, whose counter of steps has the same shape."""
        model = Model(one=self.spread(life, (), self.line, Replicate()))
        return {"model": model, "optimizer": self.trained(life, torch.optim.AdamW, model)}

    def optimizers(self, life: int) -> dict[str, Any]:
        """Those whose state is made of parts like the parameter's, beside AdamW."""
        kinds: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
            (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
            (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
            (torch.optim.Adagrad, {}),
        ]
        result: dict[str, Any] = {}
        for number, (kind, options) in enumerate(kinds):
            model = Model(weight=self.spread(life, (5, 3 + number), self.square, Shard(0), Shard(1)))
            result[f"model{number}"] = model
            result[f"optimizer{number}"] = self.trained(life, kind, model, **options)
        return result

    def uneven(self, life: int) -> dict[str, Any]:
        """Both dimensions of a mesh share one of the tensor, which has fewer rows than there are ranks."""
        return {
            "model": Model(
                **{f"w{n}": self.spread(life, (n, 2), self.square, Shard(0), Shard(0)) for n in (1, 2, 3, 5)}
            )
        }

    def same_name(self, life: int) -> dict[str, Any]:
        """Stages under one name."""
        return {"model": Model(**{f"layer{self.rank}": self.whole(life, (3,))})}

    def mixed_meshes(self, life: int) -> dict[str, Any]:
        """The ranks do not agree on how a tensor lies."""
        placements = [Shard(0), Replicate()] if self.rank < 2 else [Replicate(), Shard(0)]
        part = torch.full((2, 3), float(life))
        shape, stride = torch.Size((4, 3)), (3, 1)
        return {
            "model": Model(a=DTensor.from_local(part, self.square, placements, shape=shape, stride=stride))
        }

    def partial(self, life: int) -> dict[str, Any]:
        """A sum of which each rank has a term."""
        return {"keeper": Keeper(DTensor.from_local(torch.full((3,), float(life)), self.line, [Partial()]))}

    def strided(self, life: int) -> dict[str, Any]:
        """Every second row is another rank's, which no box describes."""
        half, start = divmod(self.rank, 2)
        part = (torch.arange(8.0).reshape(8, 1) * life)[4 * half : 4 * half + 4][start::2]
        placements = [Shard(0), _StridedShard(0, split_factor=2)]
        whole = DTensor.from_local(part, self.square, placements, shape=torch.Size((8, 1)), stride=(1, 1))
        return {"model": Model(a=whole)}

    def play(self, name: str) -> dict[str, Any]:
        """Save, make anew, restore."""
        make: Make = getattr(self, name)
        registry = Registry(DirectoryStore(self.root / name), "run")
        registry.writer = "test"
        told: dict[str, Any] = {}
        if self.world.size > 1:
            objects = make(1)
            before = self.values(objects)
            sharded = self.sharded(objects)
            self.at = "resume"
            sharded.check()
            self.at = "save"
            make_durable(
                registry, self.world, 1, sharded.capture(), lambda _: None, lambda _: None, healthy=True
            )
        objects = make(2)
        sharded = self.sharded(objects)
        sharded.check()
        latest = registry.latest()
        if latest is None:
            raise SystemExit("nothing was saved")
        sharded.restore(registry.manifest(latest.dir), registry, lambda: None)
        after = self.values(objects)
        if self.world.size > 1:
            told["same"] = {key: torch.equal(before[key], after[key]) for key in before} if before else {}
            told["names"] = sorted(after) == sorted(before)
        else:
            objects = make(1)
            wanted = self.values(objects)
            told["same"] = {key: torch.equal(wanted[key], after[key]) for key in wanted}
        told["kinds"] = self.kinds(objects)
        return told

    def sharded(self, objects: dict[str, Any]) -> Sharded:
        """Return what saves these."""
        state = State(Staging())
        state.track(objects)
        return Sharded(state, Staging(), self.world)

    def values(self, objects: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Return a copy of this rank's part of each tensor."""
        state = State(Staging())
        state.track(objects)
        _, flat = state.encode(sharded=True)
        parts = {name: t.to_local() if isinstance(t, DTensor) else t for name, t in flat.items()}
        return {name: part.clone() for name, part in parts.items() if not name.startswith("rng/")}

    def kinds(self, objects: dict[str, Any]) -> dict[str, str]:
        """Return the type of each tensor."""
        state = State(Staging())
        state.track(objects)
        return {name: type(tensor).__name__ for name, tensor in state.encode(sharded=True)[1].items()}


def main() -> None:
    """Play the cases."""
    out, kind, root, *names = sys.argv[1:]
    if kind != "plain":
        dist.init_process_group("gloo")
    cases = Cases(Path(root))
    told: dict[str, Any] = {}
    for name in names:
        try:
            told[name] = cases.play(name)
        except SpotwatchError as problem:
            told[name] = f"at {cases.at}: {type(problem).__name__}: {problem}"
    Path(f"{out}.{cases.rank}").write_text(json.dumps(told), encoding="utf-8")
    cases.world.close()
    if kind != "plain":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
