# SPDX-License-Identifier: Apache-2.0
"""Runs that train with Accelerate, each over several lives, all forked from one process that has imported it.

`accelerate_run.py BASE CASES.json`: a case is a dict: `name`, `lives` (what happens in each: {"at": "train:5:1",
"signal": 15, "rank": 0}), `ranks`, and how it is made (see `make`). Each life appends to BASE/name/trace.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accelerate.data_loader
import numpy as np
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler

from spotwatch.train import Checkpointer
from spotwatch.train.integrations.accelerate import SpotwatchRun
from tests.train.integrations.lives import note

LENGTH, BATCH, EPOCHS = 38, 4, 3


class Points(Dataset[torch.Tensor]):
    """Samples that are transformed at random, by all three libraries, if `chance`."""

    def __init__(self, length: int, *, chance: bool) -> None:
        self.length = length
        self.chance = chance

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        point = torch.full((3,), float(index))
        if self.chance:
            noise = [random.random(), float(np.random.randn()), float(torch.rand(()))]
            point += torch.tensor(noise)
        return point


class Stream(IterableDataset[torch.Tensor]):
    """The same, one after the other; with `keeps` it knows where it is."""

    def __init__(self, length: int, *, keeps: bool) -> None:
        self.length = length
        self.generator = torch.Generator().manual_seed(5)
        self.at = 0
        if keeps:
            self.state_dict = lambda: {"at": self.at}
            self.load_state_dict = lambda state: setattr(self, "at", state["at"])

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = torch.randperm(self.length, generator=self.generator).tolist()
        while self.at < len(order):
            self.at += 1
            yield torch.full((3,), float(order[self.at - 1]))
        self.at = 0


class Tally:
    """Something registered for checkpointing."""

    def __init__(self) -> None:
        self.seen = 0

    def state_dict(self) -> dict[str, int]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


class Watch:
    """Does to this process what its life is to suffer, at one place."""

    def __init__(self, plan: dict[str, Any], rank: int) -> None:
        self.plan = plan if plan.get("rank", 0) == rank else {}

    def at(self, *where: object) -> None:
        if self.plan.get("at") == ":".join(str(part) for part in where):
            os.kill(os.getpid(), self.plan["signal"])


def make(case: dict[str, Any]) -> tuple[Any, ...]:
    """Make everything as a user's program does, the same in each life."""
    torch.manual_seed(case.get("seed", 1))
    random.seed(2)
    np.random.seed(3)
    config = DataLoaderConfiguration(**case.get("loader", {}))
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=case.get("accumulation", 1),
        dataloader_config=config,
        **plugins(case),
    )
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
    )
    if case.get("fsdp"):
        model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=200)
    options = {"batch_size": BATCH, "num_workers": case.get("workers", 0)}
    if case.get("generator"):
        options["generator"] = torch.Generator().manual_seed(9)
    if case.get("stream"):
        loader = DataLoader(Stream(LENGTH, keeps=case["stream"] == "keeps"), **options)
    elif case.get("weighted"):
        sampler = WeightedRandomSampler([1.0 + i % 5 for i in range(LENGTH)], LENGTH)
        loader = DataLoader(Points(LENGTH, chance=case.get("chance", True)), sampler=sampler, **options)
    else:
        loader = DataLoader(Points(LENGTH, chance=case.get("chance", True)), shuffle=True, **options)
    evaluation = DataLoader(Points(17, chance=True), batch_size=BATCH)
    model, optimizer, loader, evaluation, scheduler = accelerator.prepare(
        model, optimizer, loader, evaluation, scheduler
    )
    return accelerator, model, optimizer, loader, evaluation, scheduler


def plugins(case: dict[str, Any]) -> dict[str, Any]:
    """Return more arguments of the Accelerator."""
    if not case.get("fsdp"):
        return {}
    from accelerate import FullyShardedDataParallelPlugin

    return {"fsdp_plugin": FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap")}


def live(folder: Path, case: dict[str, Any], plan: dict[str, Any], rank: int) -> int:
    """Train, as a user would."""
    accelerator, model, optimizer, loader, evaluation, scheduler = make(case)
    tally = Tally()
    accelerator.register_for_checkpointing(tally)
    trace = folder / f"trace.{rank}"
    watch = Watch(plan, rank)
    ck = Checkpointer(
        folder / "store", run_id="run", every_steps=case.get("every_steps", 1000), patience_seconds=5.0
    )
    run = SpotwatchRun(ck, accelerator, rereads=case.get("rereads", False))

    def evaluate() -> None:
        model.eval()
        total = []
        with torch.no_grad():
            for number, batch in enumerate(run.evaluate(evaluation)):
                watch.at("evaluate", run.steps, number)
                total.append(float(accelerator.gather_for_metrics(model(batch)).sum()) + random.random())
        model.train()
        note(trace, evaluated=run.steps, result=[value.hex() for value in total])

    note(trace, life=True)
    with run:
        if run.evaluates_first:
            evaluate()
        for epoch in range(loader.iteration, EPOCHS):
            for number, batch in enumerate(loader):
                with accelerator.accumulate(model):
                    loss = model(batch).square().mean() / 1000
                    accelerator.backward(loss)
                    watch.at("train", epoch, number)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                tally.seen += len(batch)
                note(trace, epoch=epoch, loss=loss.item().hex(), lr=scheduler.get_last_lr()[0].hex(),
                     seen=tally.seen, order=[round(float(x)) for x in batch[:, 0]] if not case.get("chance", True) else [],
                     luck=random.random().hex(), synced=accelerator.sync_gradients)
                run.step()
                if case.get("evaluate_every") and accelerator.sync_gradients and run.steps % case["evaluate_every"] == 0:
                    evaluate()
            if not case.get("evaluate_every"):
                evaluate()
    note(trace, finished=ck.exit_code, weights=[float(p.detach().sum() if not hasattr(p, "full_tensor") else p.full_tensor().sum()).hex() for p in model.parameters()])
    accelerator.end_training()
    return ck.exit_code


def ranks_of(folder: Path, case: dict[str, Any], plan: dict[str, Any]) -> list[int]:
    """Live one life in as many processes as it has, and return how they ended."""
    count = plan.get("ranks", case.get("ranks", 1))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    children = []
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            if count > 1:
                os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count),
                                  MASTER_ADDR="127.0.0.1", MASTER_PORT=port, ACCELERATE_USE_CPU="true")
            if case.get("fsdp"):
                os.environ.update(ACCELERATE_USE_FSDP="true")
            code = 1
            try:
                code = live(folder, case, plan, rank)
            except SystemExit as leaving:
                code = leaving.code
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush(); sys.stderr.flush()
            os._exit(code)
        children.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def main() -> None:
    """Live all lives of all cases."""
    base, cases = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    torch.set_num_threads(1)
    for case in cases:
        folder = base / case["name"]
        folder.mkdir(parents=True)
        runtime = folder / "runtime"
        runtime.mkdir(mode=0o700)
        os.environ["SPOTWATCH_RUNTIME_DIR"] = str(runtime)
        for plan in case["lives"]:
            note(folder / "codes", codes=ranks_of(folder, case, plan))


if __name__ == "__main__":
    main()
