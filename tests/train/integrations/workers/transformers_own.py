# SPDX-License-Identifier: Apache-2.0
"""Runs that begin with a checkpoint of the Trainer's own, and Trainers of a program's own.

The checks that `transformers_checks` does with its `Bench`, as those that are in it.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from transformers import Trainer, TrainerCallback


class Stop(TrainerCallback):
    """Is signalled at a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Send it."""
        del args, control, kwargs
        if state.global_step == self._step:
            os.kill(os.getpid(), signal.SIGTERM)


class StopEvaluating(TrainerCallback):
    """Is signalled at the first batch of an evaluation; notes the step of each batch."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Send it."""
        del args, control, kwargs
        self.steps.append(state.global_step)
        if len(self.steps) == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def is_same(one: Any, other: Any) -> bool:
    """Tell whether two Trainers have come to the same: weights, logs, and what chance comes next."""
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    logged = [
        [(row["step"], row["loss"]) for row in each.state.log_history if "loss" in row]
        for each in (one, other)
    ]
    return all(torch.equal(*pair) for pair in pairs) and logged[0] == logged[1]


def resumed_from_its_own(bench: Any) -> str:
    """Begin with a checkpoint of the Trainer's, be stopped, and go on with ours; is all alike?"""
    whole = bench.trainer(max_steps=8, save_strategy="steps", save_steps=3)
    whole.train()
    first = bench.trainer(bench.callback(exits=False), Stop(5), max_steps=8)
    begun = first.train(resume_from_checkpoint=str(bench.base / "own/checkpoint-3")).global_step
    second = bench.trainer(bench.callback(), max_steps=8)
    ended = second.train(resume_from_checkpoint=True).global_step
    return f"{begun} {ended} {is_same(whole, second)}"


def begun_evaluating(bench: Any) -> str:
    """Begin with one, be stopped twice in the evaluation before the first step; it may be gone then."""
    bench.trainer(max_steps=3, save_strategy="steps", save_steps=3, logging_steps=2).train()
    own = str(bench.base / "own/checkpoint-3")
    given = {"max_steps": 8, "eval_on_start": True, "per_device_eval_batch_size": 2, "logging_steps": 2}
    whole = bench.trainer(**given)
    whole.train(resume_from_checkpoint=own)
    said = []
    for later in (own, None):
        run_id = f"run-{later is None}"
        steps: list[int] = []
        for folder in (own, later, later):
            callbacks = [bench.callback(run_id, exits=False)] + [StopEvaluating()] * (len(steps) < 2)
            last = bench.trainer(*callbacks, **given)
            steps.append(last.train(resume_from_checkpoint=folder).global_step)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        said.append(f"{steps} {is_same(whole, last)}")
    return "; ".join(said)


def also_without_adapters(bench: Any) -> str:
    """Name frozen tensors of a model that has no adapters."""
    bench.trainer(bench.callback(also="*.base_layer.weight")).train()
    return "trained"


def always_given(bench: Any) -> str:
    """Give the folder in every life: where an epoch has ended, nothing of it counts, chance neither."""
    given = {"lr_scheduler_type": "constant", "logging_steps": 1}
    whole = bench.trainer(max_steps=14, save_strategy="steps", save_steps=3, **given)
    whole.train()
    for steps in (11, 14):
        last = bench.trainer(bench.callback(), max_steps=steps, **given)
        last.train(resume_from_checkpoint=str(bench.base / "own/checkpoint-3"))
    return f"{last.state.global_step} {is_same(whole, last)}"


class OtherTrain(Trainer):
    """Takes other arguments, and means something of its own by names that TRL's trainers have."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stats, self._metrics, self.note = object(), object(), ""

    def train(self, note: str, resume_from_checkpoint: Any = None, **its: Any) -> Any:
        """Train."""
        self.note = note
        return super().train(resume_from_checkpoint, **its)


class Gathering(Trainer):
    """Logs how many batches there were since the log before."""

    batches = 0

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Count it."""
        self.batches += 1
        return super().training_step(*args, **kwargs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log the count."""
        if "loss" in logs:
            logs["batches"], self.batches = self.batches, 0
        super().log(logs, *args, **kwargs)


class Gathered:
    """What it gathers, as the page says to save it."""

    def __init__(self, trainer: Gathering) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, int]:
        """Return the count."""
        return {"batches": self._trainer.batches}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Put it back."""
        self._trainer.batches = state["batches"]


def gathered(bench: Any) -> str:
    """Track what a Trainer of one's own gathers between two logs, and be stopped between them."""
    for callbacks in ((Stop(5),), ()):
        callback = bench.callback(exits=False)
        trainer = bench.trainer(callback, *callbacks, of=Gathering, max_steps=8, logging_steps=4)
        bench.ck.track(gathered=Gathered(trainer))
        trainer.train()
    return str([row["batches"] for row in trainer.state.log_history if "batches" in row])


class AnyTrain(Trainer):
    """Hands all on."""

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train."""
        return super().train(*args, **kwargs)


def own_train(bench: Any) -> str:
    """Have a `train` of other arguments, given by place and by name, stopped and gone on with."""
    said: list[Any] = []
    for kind, args, its in (
        (OtherTrain, ("noted",), {}),
        (OtherTrain, ("noted", False), {"ignore_keys_for_eval": ["past_key_values"]}),
        (AnyTrain, (None,), {}),
    ):
        run_id = f"run-{len(said)}"
        bench.trainer(bench.callback(run_id, exits=False), Stop(2), of=kind, max_steps=5).train(*args, **its)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        trainer = bench.trainer(bench.callback(run_id), of=kind, max_steps=5)
        steps = trainer.train(*args, **its).global_step
        untouched = kind is AnyTrain or {type(trainer.stats), type(trainer._metrics)} == {object}
        said.append(f"{steps} {untouched}")
    try:
        bench.trainer(bench.callback("wrong"), of=OtherTrain).train()
    except TypeError as error:
        said.append(str(error))
    return "; ".join(said)
