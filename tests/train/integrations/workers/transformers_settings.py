# SPDX-License-Identifier: Apache-2.0
"""What callbacks freeze while a model trains, and lives with other arguments than the one before.

The checks that `transformers_checks` does with its `Bench`, as those that are in it.
"""

from __future__ import annotations

import signal
from typing import Any

from transformers import TrainerCallback

from tests.train.integrations.workers.transformers_own import Stop, is_same

_LOGS = {"logging_steps": 1}


class Switches(TrainerCallback):
    """Freezes the words and trains the places, from a step on."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Begin the other way round, in each life."""
        del args, state, control, kwargs
        model.transformer.wpe.weight.requires_grad_(False)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Do it."""
        del args, control, kwargs
        if state.global_step == self._step:
            model.transformer.wte.weight.requires_grad_(False)
            model.transformer.wpe.weight.requires_grad_(True)


class Freezes(TrainerCallback):
    """Freezes something else, before training."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Do it."""
        del args, state, control, kwargs
        model.transformer.ln_f.weight.requires_grad_(False)


def _stopped(bench: Any, run_id: str, *callbacks: Any, **given: Any) -> int:
    trainer = bench.trainer(bench.callback(run_id, exits=False), Stop(5), *callbacks, **given)
    steps: int = trainer.train().global_step
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return steps


def frozen_again(bench: Any) -> str:
    """Be stopped after a callback has frozen one weight, and thawed another; are the lives alike?"""
    given = {"max_steps": 8} | _LOGS
    whole = bench.trainer(Switches(3), **given)
    whole.train()
    _stopped(bench, "switched", Switches(3), **given)
    again = bench.trainer(bench.callback("switched"), Switches(3), **given)
    again.train()
    # What the program itself does otherwise in the next life is as it says.
    _stopped(bench, "freely", Switches(3), **given)
    other = bench.trainer(bench.callback("freely"), Freezes(), **given)
    other.train()
    frozen = [name for name, one in other.model.named_parameters() if not one.requires_grad]
    return f"{is_same(whole, again)} {frozen}"


def other_rates(bench: Any) -> str:
    """Go on with another rate, weight decay and betas: the checkpoint's count."""
    given = {"max_steps": 8} | _LOGS
    whole = bench.trainer(**given)
    whole.train()
    _stopped(bench, "run", **given)
    changed = {"learning_rate": 0.5, "weight_decay": 0.5, "adam_beta2": 0.5}
    again = bench.trainer(bench.callback(), **given, **changed)
    again.train()
    return str(is_same(whole, again))


def longer_schedule(bench: Any) -> str:
    """Want more steps, in the middle and at the end: each rate is that of the longer schedule."""
    whole = bench.trainer(max_steps=12, **_LOGS)
    whole.train()
    rates = {row["step"]: row["learning_rate"] for row in whole.state.log_history if "loss" in row}
    said = []
    for run_id, steps in (("stopped", 8), ("finished", 5)):
        done = _stopped(bench, run_id, max_steps=steps, **_LOGS)
        again = bench.trainer(bench.callback(run_id), max_steps=12, **_LOGS)
        again.train()
        history = [row for row in again.state.log_history if "loss" in row]
        later = [row["learning_rate"] == rates[row["step"]] for row in history if row["step"] > done]
        said.append(f"{len(later)} {all(later)}")
    return " ".join(said)
