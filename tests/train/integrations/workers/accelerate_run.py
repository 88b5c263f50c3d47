# SPDX-License-Identifier: Apache-2.0
"""Runs that train with Accelerate, each over several lives, all forked from one process that has imported it.

`accelerate_run.py BASE CASES.json`: a case has a `name`, its `lives`, and what `accelerate_objects` takes.
A life says what befalls it and where: `{"at": "train:1:3", "signal": 15, "rank": 1}`. Each rank appends what
it does to BASE/NAME/trace.RANK, and BASE/NAME/codes has how each life ended.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # each life would import them on its own, for seconds
import torch.distributed.checkpoint
import torch.distributed.fsdp

from spotwatch.model import Do
from spotwatch.train import Checkpointer
from spotwatch.train.integrations.accelerate import SpotwatchRun
from tests.train.conftest import Daemon
from tests.train.integrations.lives import note
from tests.train.integrations.workers import accelerate_objects as objects
from tests.train.integrations.workers.shard_on_cpus import is_sharded
from tests.train.rendezvous import rendezvous

EPOCHS = 3


class Program:
    """One process of one life, as a user writes it."""

    def __init__(self, folder: Path, case: dict[str, Any], plan: dict[str, Any], rank: int) -> None:
        self.plan = plan if plan.get("rank", 0) == rank else {}
        self.case = case
        self.folder = folder
        self.trace = folder / f"trace.{rank}"
        self.accelerator = objects.accelerator(case, plan.get("seed", 1))
        model = objects.model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=200)
        self.model, self.optimizer, self.scheduler, self.loader, self.evaluation = self.accelerator.prepare(
            model, optimizer, scheduler, objects.loader(case), objects.evaluation(case)
        )
        self.tally = objects.Tally()
        self.accelerator.register_for_checkpointing(self.tally)
        every = case.get("every_steps", 1000)
        self.ck = Checkpointer(folder / "store", run_id="run", every_steps=every, patience_seconds=5.0)
        self.run = SpotwatchRun(
            self.ck, self.accelerator, rereads=case.get("rereads", False), exits=case.get("exits", True)
        )

    def live(self) -> int:
        """Train until the end, or until told to stop."""
        every = self.case.get("evaluate_every")
        with self.run:
            note(self.trace, begins=self.run.steps, sharded=is_sharded(self.model))
            if self.run.is_due(every) if every else self.run.evaluates_first:
                self.evaluate()
            for epoch in range(self.loader.iteration, EPOCHS):
                for number, batch in enumerate(self.loader):
                    self.train(epoch, number, batch)
                    if self.run.step():
                        return self.ck.exit_code
                    if every and self.run.is_due(every):
                        self.evaluate()
                if every is None:
                    self.evaluate()
        if not self.ck.exit_code:
            note(self.trace, weights=[self.hex(weight) for weight in self.model.parameters()])
        self.accelerator.end_training()
        return self.ck.exit_code

    def train(self, epoch: int, number: int, batch: Any) -> None:
        """Do all that belongs to one batch."""
        with self.accelerator.accumulate(self.model):
            loss = self.model(batch).square().mean() / 1000
            self.accelerator.backward(loss)
            self.befall("train", epoch, number)
            if self.steps_here():
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
        self.tally.seen += len(batch)
        note(
            self.trace,
            epoch=epoch,
            seen=self.tally.seen,
            loss=loss.item().hex(),
            rate=self.scheduler.get_last_lr()[0].hex(),
            luck=random.random().hex(),
            is_step=self.accelerator.sync_gradients,
        )

    def steps_here(self) -> bool:
        """Tell whether this batch ends a step, if the program accumulates by hand."""
        taken = self.run.taken(self.loader)
        return taken % self.case.get("by_hand", 1) == 0 or taken == len(self.loader)

    def evaluate(self) -> None:
        """Evaluate with chance, as a program that generates text would."""
        self.model.eval()
        results = []
        with torch.no_grad():
            parts = (self.run.evaluate(self.evaluation) for _ in range(self.case.get("evaluations", 1)))
            for number, batch in enumerate(chain.from_iterable(parts)):
                self.befall("evaluate", self.run.steps, number)
                result = self.accelerator.gather_for_metrics(self.model(batch)).sum()
                results.append((result.item() + random.random()).hex())
        self.model.train()
        note(self.trace, evaluated=self.run.steps, results=results)

    def befall(self, *where: object) -> None:
        """Let happen to this process what its plan says of this place."""
        if self.plan.get("at") != ":".join(str(part) for part in where):
            return
        if "signal" in self.plan:
            if self.plan["signal"] == signal.SIGKILL:
                _wait((self.folder / "store" / "run" / "LATEST").exists)
            else:
                for worker in multiprocessing.active_children():  # as a signal to the process group does
                    os.kill(int(worker.pid or 0), self.plan["signal"])
            os.kill(os.getpid(), self.plan["signal"])
            return
        Daemon(self.folder / "runtime").order(Do(self.plan["order"]), 1)
        _wait(self.ck.poll)

    def hex(self, weight: Any) -> str:
        """Return what a weight, or its parts on all ranks, come to."""
        weight = weight.detach()
        return str((weight.full_tensor() if hasattr(weight, "full_tensor") else weight).sum().item().hex())


def live(folder: Path, case: dict[str, Any], plan: dict[str, Any]) -> list[int]:
    """Live one life in as many processes as it has, and return how they ended."""
    count = plan.get("ranks", case.get("ranks", 1))
    meeting = rendezvous()
    children = []
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            if case.get("fsdp"):
                os.environ["ACCELERATE_USE_FSDP"] = "true"
            if count > 1:
                place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
                os.environ.update(place | meeting)
            os._exit(_lived(folder, case, plan, rank))
        children.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _wait(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)


def _lived(folder: Path, case: dict[str, Any], plan: dict[str, Any], rank: int) -> int:
    try:
        return Program(folder, case, plan, rank).live()
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:  # noqa: BLE001 - a child must never return into the launcher
        traceback.print_exc()
        return 1


def main() -> None:
    """Live all lives of all cases."""
    base, cases = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    for case in cases:
        folder = base / case["name"]
        runtime_dir = folder / "runtime"
        runtime_dir.mkdir(mode=0o700, parents=True)
        os.environ["SPOTWATCH_RUNTIME_DIR"] = str(runtime_dir)
        for plan in case["lives"]:
            note(folder / "codes", codes=live(folder, case, plan))


if __name__ == "__main__":
    main()
