# SPDX-License-Identifier: Apache-2.0
"""Lives of a Lightning run, each forked from one process that has imported Lightning.

`lightning_run.py` reads requests, a line of JSON each, and forks a life for each: it trains a small model as
the request says, notes every step, evaluation and logged value, and does to itself, at the step named, what a
daemon, a machine or a kernel would. The request's status file tells how it has ended.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import select
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch
import pytorch_lightning
import torch
import torchmetrics
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import prune
from torch.utils.data import DataLoader

from spotwatch.model import Do
from spotwatch.train import Checkpointer
from spotwatch.train.integrations.lightning import SpotwatchCallback
from tests.train.conftest import Daemon
from tests.train.integrations.lives import note
from tests.train.integrations.workers.lightning_callbacks import csv, kept, switching
from tests.train.integrations.workers.lightning_data import evaluated, given, loader
from tests.train.integrations.workers.lightning_estimates import asking, schedule
from tests.train.integrations.workers.lightning_metrics import More

PACKAGES = {"lightning": lightning.pytorch, "pytorch_lightning": pytorch_lightning}


def life(case: dict[str, Any], store: str, trace: str) -> None:  # noqa: C901, PLR0912, PLR0915 - as the case has it
    """Train, from wherever the run stands, to its end or to a stop."""
    pl: Any = PACKAGES[case.get("package", "lightning")]
    rank = int(os.environ.get("RANK", "0"))
    runtime_dir = os.environ["SPOTWATCH_RUNTIME_DIR"]
    tell = case.get("tell", {})

    def say(**what: Any) -> None:
        note(f"{trace}.{rank}" if "RANK" in os.environ else trace, **what)

    def be_told(place: str, module: Any) -> None:
        at = (place, module.trainer.global_step, rank)
        if at != (tell.get("in"), tell.get("step"), tell.get("rank", 0)):
            return
        tell["in"] = None
        if tell["how"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif tell["how"] == "term":
            os.kill(os.getpid(), signal.SIGTERM)
        elif tell["how"] == "group":
            os.killpg(os.getpgrp(), signal.SIGTERM)
        else:
            daemon = Daemon(Path(runtime_dir))
            if tell["how"] == "flush":
                daemon.flag(1)
            daemon.order(Do(tell["how"]), 1)
            wait(lambda: ck._link.orders.flush if tell["how"] == "flush" else ck.poll())

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(4, 8),
                torch.nn.LayerNorm(8) if case.get("sharded") else torch.nn.BatchNorm1d(8),
                torch.nn.Dropout(0.2),
                torch.nn.Linear(8, 1),
            )
            self.metric = torchmetrics.MeanMetric()
            self.hand = torchmetrics.SumMetric()
            self.more = More() if case.get("metrics") else None
            self.automatic_optimization = not case.get("manual")
            self.waits = 0
            self.gathered: list[float] = []
            self.save_hyperparameters({"kind": Path("models"), "width": 8} if case.get("hyper") else {})

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, n = batch["long"] if isinstance(batch, dict) else batch
            be_told("step", self)
            loss = (self.layers(x).squeeze(1) - n / 24).square().mean() * self.weight
            if isinstance(batch, dict):
                for one in (more for name, more in batch.items() if name != "long"):
                    loss = loss + 0.1 * self.layers(one[0]).mean()
            self.log("loss", loss, on_step=True, on_epoch=True, batch_size=4)
            self.metric(loss.detach())
            self.hand.update(loss.detach())
            self.gathered.append(float(loss))
            if self.more is not None:
                self.more.take(loss.detach())
            self.log("metric", self.metric, on_epoch=True, on_step=False, batch_size=4)
            self.last = n.tolist(), float(loss).hex()
            if not self.automatic_optimization:
                self.manual_backward(loss)
                self.waits += 1
                if self.waits % 2 == 0:  # gradients of two batches
                    for optimizer in self.optimizers():
                        optimizer.step()
                        optimizer.zero_grad()
            return loss

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == case.get("cuts") else None

        def on_train_batch_end(self, *_: Any) -> None:
            lr = self.trainer.optimizers[0].param_groups[0]["lr"]
            say(
                step=self.trainer.global_step,
                batch=self.trainer.fit_loop.total_batch_idx,
                had=self.last,
                lr=lr,
            )
            be_told("batch", self)

        def on_train_start(self) -> None:
            self.weight = 1 + self.trainer.current_epoch  # as the page says to

        def on_train_epoch_start(self) -> None:
            self.weight = 1 + self.trainer.current_epoch
            if self.more is not None:
                self.more.begin_epoch()
            say(epoch=self.trainer.current_epoch, draw=torch.rand(1).item())

        def on_train_epoch_end(self) -> None:
            more = None if self.more is None else self.more.values()
            say(over=self.trainer.current_epoch, hand=float(self.hand.compute()).hex(), more=more)
            self.hand.reset()
            if case.get("prunes") and self.trainer.current_epoch == 0:
                prune.l1_unstructured(self.layers[0], "weight", 0.2)  # type: ignore[no-untyped-call]
            be_told("epoch", self)

        def on_train_end(self) -> None:
            say(end=self.trainer.global_step)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == (0 if self.trainer.sanity_checking else 1):
                be_told("sanity" if self.trainer.sanity_checking else "validation", self)
            x, n = batch
            if case.get("draws"):
                each = case["draws"] == "each batch"
                self.log("order", n[0] + 12.0 * n[1], batch_size=4, on_step=each, on_epoch=True)
            noise = torch.rand(1)
            if self.more is not None and not self.trainer.sanity_checking:
                self.more.take(noise)
            self.log("val", (self.layers(x).squeeze(1) - n / 24).square().mean() + noise, batch_size=4)

        def test_step(self, batch: Any, batch_idx: int) -> None:
            say(tested=batch_idx)
            if batch_idx == 1:
                be_told("test", self)

        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            say(predicted=batch_idx)
            if batch_idx == 1:
                be_told("prediction", self)
            return self.layers(batch[0])

        def on_validation_end(self) -> None:
            if not self.trainer.sanity_checking:
                say(evaluated=self.trainer.global_step, draw=torch.rand(1).item())

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            if case.get("hooks"):
                checkpoint["mine"] = {"waits": self.waits}
            if case.get("unsafe"):
                checkpoint["mine"] = {"model": Model}

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            if case.get("hooks"):
                self.waits = checkpoint["mine"]["waits"]
                say_quietly(loaded=sorted(checkpoint))

        def configure_optimizers(self) -> Any:
            one = torch.optim.AdamW(filter(lambda one: one.requires_grad, self.parameters()), lr=0.01)
            if case.get("manual"):
                return [one, torch.optim.SGD(self.layers[0].parameters(), lr=0.001)]
            if case.get("plateau"):
                # Nothing is good enough: each epoch after the first halves the learning rate.
                scheduler: Any = torch.optim.lr_scheduler.ReduceLROnPlateau(
                    one, patience=0, factor=0.5, threshold=0.99
                )
                return [one], [{"scheduler": scheduler, "monitor": case["plateau"], "interval": "epoch"}]
            return [one], [{"scheduler": schedule(one, self.trainer, case), "interval": "step"}]

    class Sharded(Model):
        def configure_model(self) -> None:
            fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])

    def say_quietly(**what: Any) -> None:
        note(f"{trace}.quiet", **what)

    class Recorder(pl.loggers.logger.Logger):
        name, version = "recorder", 0

        def log_hyperparams(self, *_: Any, **__: Any) -> None: ...

        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            say(log={key: float(value).hex() for key, value in metrics.items()}, at=step)

        def finalize(self, status: str) -> None:
            say_quietly(finalized=status)

    pl.seed_everything(case.get("seed", 1), workers=True, verbose=False)
    ck = Checkpointer(
        store,
        run_id="run",
        **{"every_seconds": 1000, "patience_seconds": 0.0, "blocking": True, **case.get("ck", {})},
    )
    mine = SpotwatchCallback(ck, exits=case.get("exits", True))
    callbacks: list[Any] = [*asking(pl, case), mine, *switching(pl, case)]
    if case.get("early"):
        callbacks.append(pl.callbacks.EarlyStopping("val", patience=1, min_delta=0.3))
    if case.get("ema"):
        callbacks.append(pl.callbacks.EMAWeightAveraging(decay=0.9))
    if case.get("saves"):
        folder = f"{store}-files-{case['life']}" if case["saves"] == "own" else f"{store}-files"
        callbacks.append(pl.callbacks.ModelCheckpoint(folder, monitor="val", save_top_k=2, save_last=True))
    match case.get("bad"):
        case "averaging":
            callbacks.append(pl.callbacks.StochasticWeightAveraging(0.1))
        case "finder":
            callbacks.append(pl.callbacks.LearningRateFinder())
        case "pruning":
            callbacks.append(pl.callbacks.ModelPruning("l1_unstructured", amount=0.2))
        case "two":
            callbacks.append(SpotwatchCallback(ck))
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=callbacks,
        logger=[Recorder(), *csv(pl, case, store)],
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=f"{store}-root",
        **{
            "max_epochs": 3,
            "log_every_n_steps": 2,
            "num_sanity_val_steps": 1,
            "devices": 1,
            "enable_checkpointing": bool(case.get("saves")),
            "limit_val_batches": 3,
            **case.get("trainer", {}),
            **({"strategy": pl.strategies.ModelParallelStrategy(2, 1)} if case.get("sharded") else {}),
        },
    )
    lasting: dict[str, Any] = {"num_workers": 1, "persistent_workers": True} if case.get("lasting") else {}
    if case.get("draws"):
        lasting |= {"shuffle": True, "generator": torch.Generator().manual_seed(4)}
    validation: Any = DataLoader(evaluated(case, rank), batch_size=4, **lasting)
    model = Sharded() if case.get("sharded") else Model()
    if case.get("bad") == "renamed":
        trainer.fit_loop.on_advance_end = lambda surprise: surprise
        del trainer._logger_connector._first_loop_iter
    path = {"ckpt_path": case["path"]} if "path" in case else {}
    try:
        if case.get("bad") == "twice":
            trainer.fit(model, loader(case), validation)
        trainer.fit(model, **given(pl, case, validation), **path)
        for after in case.get("after", ()):
            getattr(trainer, after)(model, validation)
    finally:
        say_quietly(exit_code=ck.exit_code, status=str(trainer.state.status), life=case["life"])
        say_quietly(
            last={name: float(value).hex() for name, value in trainer.callback_metrics.items()},
            **kept(trainer),
        )
    if case.get("raises_after"):
        raise SystemExit(ck.exit_code)


def wait(condition: Any) -> None:
    """Wait until something is so."""
    until = time.monotonic() + 60
    while not condition():
        if time.monotonic() > until:
            raise AssertionError("not in time")
        time.sleep(0.01)


def run(request: dict[str, Any]) -> int:
    """Be a life; return its status."""
    os.setsid()
    out = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(request["environ"])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        if "page" in request["case"]:
            os.chdir(Path(request["output"]).parent)
            exec(request["case"]["page"], {})
            return 0
        life(request["case"], request["store"], request["trace"])
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # noqa: BLE001 - a child must never return into the server
        traceback.print_exc()
        return 1
    return 0


def answer(line: str) -> None:
    """Tell the tests."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve requests until there are none, and tell how each life ends."""
    torch.set_num_threads(1)
    importlib.import_module("torch.distributed.checkpoint")
    importlib.import_module("torch.distributed.fsdp")
    logging.basicConfig(level=logging.INFO)
    warnings.simplefilter("ignore")
    waiting: dict[int, str] = {}
    answer("ready")
    while True:
        if select.select([sys.stdin], [], [], 0.02)[0]:
            line = sys.stdin.readline()
            if not line:
                return
            request = json.loads(line)
            pid = os.fork()
            if pid == 0:
                status = run(request)
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
            waiting[pid] = request["status"]
            answer(str(pid))
        for pid in list(waiting):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                Path(waiting.pop(pid)).write_text(str(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main()
