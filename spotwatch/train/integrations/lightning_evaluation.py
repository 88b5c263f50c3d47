# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SLF001 - an evaluation leaves its traces in private places of Lightning's
"""An evaluation within training that can be broken off and undone, so that what is saved is as before it.

It does not know why an evaluation is broken off, nor what is done then.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from spotwatch.train.checkpointer import Checkpointer
from spotwatch.train.integrations import lightning_values
from spotwatch.train.state import rng


class BrokenOff(Exception):
    """The evaluation under way is to be left at once."""


class Before:
    """How things are before an evaluation.

    Args:
        trainer: about to begin it.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._chance = rng.capture()
        loop = trainer.fit_loop.epoch_loop.val_loop
        values = lightning_values.capture(trainer)
        self._metrics = lightning_values.copied(values["metrics"])
        self._logged = values["logged"]
        self._seen = values["seen"]
        self._progress = copy.deepcopy(loop.batch_progress.state_dict())
        self._has_run = loop._has_run
        self._stage = trainer.state.stage
        self._is_swapped = False

    def begun(self) -> None:
        """Note that the hooks of its beginning have been called."""
        self._is_swapped = True

    def undo(self) -> None:
        """Make everything as it was; the evaluation may begin again."""
        trainer = self._trainer
        module = trainer.lightning_module
        loop = trainer.fit_loop.epoch_loop.val_loop
        if self._is_swapped:
            for callback in trainer.callbacks:
                if any(kind.__name__ == "WeightAveraging" for kind in type(callback).__mro__):
                    callback.on_validation_epoch_end(trainer, module)  # it has put averaged weights in
            loop._on_evaluation_model_train()
        loop.teardown()
        loop._results.clear()
        loop._logged_outputs = []
        loop._has_run = self._has_run
        loop.batch_progress.load_state_dict(self._progress)
        loop._seen_batches_per_dataloader.clear()
        loop._seen_batches_per_dataloader.update(self._seen)
        lightning_values.restore_metrics(module, self._metrics)
        connector = trainer._logger_connector
        connector._logged_metrics = self._logged["logged"]
        connector._callback_metrics = self._logged["callback"]
        connector._progress_bar_metrics = self._logged["bar"]
        connector._first_loop_iter, connector._current_fx = self._logged["first"], self._logged["fx"]
        trainer.state.stage = self._stage
        rng.restore(self._chance)


class Evaluations:
    """The evaluations within one fit, and the stops that come in them.

    Args:
        trainer: whose they are.
        ck: says whether a stop is in force.
        evaluate: runs one.
    """

    def __init__(self, trainer: Any, ck: Checkpointer, evaluate: Callable[[], Any]) -> None:
        self._trainer = trainer
        self._ck = ck
        self.evaluate = evaluate
        self._before: Before | None = None
        self._batches_to_agree_in: float = 0

    def run(self, stop: Callable[[BrokenOff], None]) -> Any:
        """Run one; broken off, it runs again, if `stop` returns.

        Args:
            stop: called where a stop is in force, when all is as it was before the evaluation.
        """
        while True:
            self._before = before = Before(self._trainer)
            try:
                self._agree()
                return self.evaluate()
            except BrokenOff as told:
                before.undo()
                stop(told)
            finally:
                self._before = None

    def begun(self) -> None:
        """Note that the hooks of its beginning have been called."""
        if self._before is not None:
            self._before.begun()

    def batch_ended(self) -> None:
        """Break it off where a stop is in force, on all ranks at the same batch."""
        if self._before is not None and self._batches_to_agree_in > 0:
            self._batches_to_agree_in -= 1
            self._look()

    def _agree(self) -> None:
        """Find out in how many batches the ranks can agree, for some may have fewer; and whether to begin."""
        trainer = self._trainer
        batches = float(sum(trainer.fit_loop.epoch_loop.val_loop.max_batches))
        if trainer.world_size > 1:
            import torch  # noqa: PLC0415 - trainers bring it; this package does not need it

            mine = torch.tensor(batches, device=trainer.strategy.root_device)
            batches = float(trainer.strategy.reduce(mine, reduce_op="min"))
        self._batches_to_agree_in = batches
        self._look()

    def _look(self) -> None:
        told = self._ck.poll()
        if self._trainer.world_size > 1:
            told = self._trainer.strategy.reduce_boolean_decision(told, all=False)
        if told:
            raise BrokenOff
