# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SLF001 - an evaluation leaves its traces in private places of Lightning's
"""An evaluation within training that can be broken off and undone, so that what is saved is as before it.

It does not know why an evaluation is broken off, nor what is done then.
"""

from __future__ import annotations

import copy
from typing import Any

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
