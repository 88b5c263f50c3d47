# SPDX-License-Identifier: Apache-2.0
"""Trainers as users make them, small, which note what they do and do to themselves what a life says.

`make` builds one; what becomes of it is the worker's.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Subset
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from spotwatch.train import Checkpointer
from spotwatch.train.integrations.transformers import SpotwatchCallback
from tests.train.integrations.lives import note
from tests.train.integrations.workers.shard_on_cpus import is_sharded, shard_on_cpus

RANK = int(os.environ.get("RANK", "0"))
_FLUSH_SECONDS = 20.0


def rows(count: int) -> list[dict[str, list[int]]]:
    """Make sentences of eight words out of thirty."""
    source = random.Random(5)
    return [
        {name: [source.randrange(30) for _ in range(8)] for name in ("input_ids", "labels")}
        for _ in range(count)
    ]


class Rows(Dataset[Any]):
    """Sentences; with `noise`, one word of each is drawn when it is read, by two generators."""

    def __init__(self, count: int, *, noise: bool) -> None:
        self._rows, self._noise = rows(count), noise

    def __len__(self) -> int:
        """Return how many."""
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one."""
        row = {name: list(words) for name, words in self._rows[index].items()}
        if self._noise:
            row["input_ids"][random.randrange(8)] = int(np.random.randint(30))  # noqa: NPY002 - the global one
        return row


class Stream(IterableDataset[Any]):
    """Sentences without a length."""

    def __init__(self, count: int) -> None:
        self._rows = rows(count)

    def __iter__(self) -> Iterator[Any]:
        """Yield them."""
        yield from self._rows


def collate(batch: list[dict[str, Any]], *, noise: bool) -> dict[str, Any]:
    """Stack a batch; with `noise`, words are masked at random, as for masked language models."""
    made = {name: torch.tensor([row[name] for row in batch]) for name in ("input_ids", "labels")}
    if noise:
        made["input_ids"] = made["input_ids"].masked_fill(torch.rand(made["input_ids"].shape) < 0.2, 0)
    return made


class Noting:
    """Notes the loss of each batch, before it counts; and lets come what the life says."""

    life: dict[str, Any]
    trace: str
    counts: dict[str, int]
    ck: Any

    def compute_loss(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute it, and note it."""
        loss = super().compute_loss(model, inputs, *args, **kwargs)  # type: ignore[misc]
        given = inputs["prompt_input_ids" if "input_ids" not in inputs else "input_ids"]
        words = hashlib.sha256(given.numpy().tobytes()).hexdigest()[:12]
        self.noted("train" if model.training else "eval", loss[0] if isinstance(loss, tuple) else loss, words)
        return loss

    def noted(self: Any, kind: str, loss: torch.Tensor, words: str) -> None:
        """Note a batch, and let come what comes at it."""
        self.counts[kind] += 1
        rate = self.optimizer.param_groups[0]["lr"] if self.optimizer else 0.0
        note(
            self.trace,
            **self.life["names"],
            what=kind,
            step=self.state.global_step,
            loss=float(loss.detach()).hex(),
            words=words,
            rate=float(rate).hex(),
        )
        for at, count, what, *rank in self.life.get("events", []):
            if (at, count) == (kind, self.counts[kind]) and RANK in (rank or [RANK]):
                self.happen(what)

    def happen(self: Any, what: str) -> None:
        """Be signalled, alone or with all workers; or be told to save, and wait until that is heard."""
        if what == "GROUP":
            signal_group()
            return
        if what != "FLUSH":
            os.kill(os.getpid(), signal.Signals[what])
            return
        Path(os.environ["SPOTWATCH_RUNTIME_DIR"], "checkpoint-now").touch()
        until = time.monotonic() + _FLUSH_SECONDS
        while not self.ck._link.orders.flush and time.monotonic() < until:
            time.sleep(0.01)


def signal_group() -> None:
    """Have another process send SIGTERM to all of this one's group, as a service manager does."""
    sends = f"import os, signal; os.killpg({os.getpgid(0)}, signal.SIGTERM)"
    subprocess.run([sys.executable, "-S", "-c", sends], check=True, start_new_session=True)


class Noted(Noting, Trainer):
    """The Trainer itself."""


class Logs(TrainerCallback):
    """Notes what is logged, the Trainer's own checkpoints, and that training has ended."""

    def __init__(self, life: dict[str, Any], trace: str) -> None:
        self._life, self._trace = life, trace

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Note it, but for the time that it took."""
        del args, control, kwargs
        note(self._trace, **self._life["names"], what="log", step=state.global_step, logs=without_times(logs))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note it."""
        del args, control, kwargs
        note(self._trace, **self._life["names"], what="own", step=state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note it."""
        del args, control, kwargs
        note(self._trace, **self._life["names"], what="train-end", step=state.global_step)


def without_times(logs: dict[str, Any]) -> dict[str, str]:
    """Return what was logged, exactly, but for what a clock says."""
    return {
        name: float(value).hex()
        for name, value in logs.items()
        if not name.endswith(("_runtime", "_per_second"))
    }


def arguments(case: dict[str, Any], life: dict[str, Any], base: Path) -> dict[str, Any]:
    """Return the training arguments of a life."""
    return {
        "output_dir": str(base / case["name"] / life.get("output", "own")),
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "seed": 7,
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2,
        "logging_steps": 3,
        "save_strategy": "no",
        **case.get("args", {}),
        **life.get("args", {}),
    }


def datasets(count: int, data: dict[str, Any], life: dict[str, Any]) -> dict[str, Any]:
    """Return what is trained on and what is evaluated; by the life's own `split` of the same sentences."""
    noise = data.get("noise", False)
    if "split" in life:
        order = random.Random(life["split"]).sample(range(count + 6), count + 6)
        of = Rows(count + 6, noise=noise)
        return {"train_dataset": Subset(of, order[:count]), "eval_dataset": Subset(of, order[count:])}
    train = Stream(count) if data.get("stream") else Rows(count, noise=noise)
    return {"train_dataset": train, "eval_dataset": Rows(6, noise=noise)}


def make(case: dict[str, Any], life: dict[str, Any], base: Path, trace: str) -> Any:
    """Make the Trainer of a life; without `plain`, a Checkpointer with it."""
    set_seed(3)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
        )
    )
    callbacks: list[Any] = [Logs(life, trace)]
    if "patience" in case:
        callbacks.append(EarlyStoppingCallback(case["patience"]))
    if "switches" in case:
        from tests.train.integrations.workers.transformers_settings import Switches  # noqa: PLC0415 - needs its lives

        callbacks.append(Switches(case["switches"]))
    ck = None
    if not life.get("plain"):
        ck = Checkpointer(
            base / case["name"] / "store", run_id="run", every_steps=case.get("every", 1000), keep=2
        )
        callbacks.append(SpotwatchCallback(ck, **case.get("options", {})))
    data, given = case.get("data", {}), arguments(case, life, base)
    if "fsdp" in given:
        shard_on_cpus()
    if "kind" in case:
        from tests.train.integrations.workers.transformers_sft import KINDS  # noqa: PLC0415 - TRL takes long

        trainer = KINDS[case["kind"]](model, given, callbacks)
    elif "held" in case:
        from tests.train.integrations.workers.transformers_held import make_held  # noqa: PLC0415 - needs this

        trainer = make_held(case["held"], model, given, callbacks)
    elif "shard" in case:
        from tests.train.integrations.workers.transformers_shard import make_shard  # noqa: PLC0415 - likewise

        trainer = make_shard(case, model, given, callbacks)
    else:
        count, noise = data.get("count", 22), data.get("noise", False)
        trainer = Noted(
            model,
            TrainingArguments(**given),
            data_collator=partial(collate, noise=noise),
            callbacks=callbacks,
            **datasets(count, data, life),
        )
    if "shifts" in life:
        for name, tensor in model.named_parameters():
            tensor.data.add_(life["shifts"] if name.endswith("base_layer.weight") else 0)
    trainer.life, trainer.trace, trainer.ck = life, trace, ck
    trainer.counts = {"train": 0, "eval": 0}
    return trainer


def end(trainer: Any, status: Any, output: Any) -> dict[str, Any]:
    """Return how a life has ended, exactly."""
    weights = hashlib.sha256()
    for tensor in trainer.model.state_dict().values():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        weights.update(whole.detach().numpy().tobytes())
    state = trainer.state
    return {
        "status": status,
        "code": None if trainer.ck is None else trainer.ck.exit_code,
        "returned": None if output is None else [output.global_step, float(output.training_loss).hex()],
        "best_in": state.best_model_checkpoint,
        "sharded": is_sharded(trainer.model),
        "is": {
            "step": state.global_step,
            "epoch": float(state.epoch).hex(),
            "best": [state.best_metric, state.best_global_step],
            "flos": state.total_flos,
            "history": [without_times(row) for row in state.log_history],
            "weights": weights.hexdigest(),
            "random": [random.random(), float(torch.rand(1)), float(np.random.rand())],  # noqa: NPY002 - likewise
        },
    }


def be_quiet() -> None:
    """Let the log say what spotwatch does, at once; one thread, so that sums come out alike."""
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    torch.set_num_threads(1)
