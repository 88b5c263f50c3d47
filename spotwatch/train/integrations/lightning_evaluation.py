# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SLF001 - an evaluation leaves its traces in private places of Lightning's
"""An evaluation within training that can be broken off and undone, so that what is saved is as before it.

It does not know why an evaluation is broken off, nor what is done then.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

from spotwatch.train.checkpointer import Checkpointer
from spotwatch.train.integrations import lightning_ddp, lightning_values, lightning_weights
from spotwatch.train.integrations.lightning_agreement import Agreement
from spotwatch.train.integrations.lightning_kinds import is_a
from spotwatch.train.state import rng

log = logging.getLogger("spotwatch.train")


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
        self._validation = values["validation"]
        self._progress = copy.deepcopy(loop.batch_progress.state_dict())
        self._has_run = loop._has_run
        self._stage = trainer.state.stage
        self._hands_round = lightning_ddp.hands_round(trainer)
        self._weights = self._sums()
        self._has_begun = False

    def begun(self) -> None:
        """Note that the hooks of its beginning have been called."""
        self._has_begun = True

    def take_averages_out(self) -> bool:
        """Take out the weights that Lightning's own averaging has put in.

        Returns whether the model is what it was before the evaluation: other callbacks put weights in too,
        and only they know where the model's own are meanwhile.
        """
        for callback in _averaging(self._trainer):
            callback.on_validation_epoch_end(self._trainer, self._trainer.lightning_module)
        return lightning_weights.are_same(self._weights, self._sums())

    def put_averages_in(self) -> None:
        """Let the evaluation go on where they were taken out."""
        for callback in reversed(_averaging(self._trainer)):
            callback.on_validation_epoch_start(self._trainer, self._trainer.lightning_module)

    def _sums(self) -> lightning_weights.Sums:
        module = self._trainer.lightning_module
        sums = lightning_weights.sums(module)
        if self._hands_round and self._trainer.global_rank > 0:
            # The first batch brings the first rank's, which are looked at there.
            for name, _ in module.named_buffers():
                sums.pop(name, None)
        return sums

    def undo(self) -> None:
        """Make everything else as it was; the evaluation may begin again."""
        trainer = self._trainer
        module = trainer.lightning_module
        loop = trainer.fit_loop.epoch_loop.val_loop
        if self._has_begun:
            loop._on_evaluation_model_train()
        loop.teardown()
        loop._results.clear()
        loop._logged_outputs = []
        loop._has_run = self._has_run
        loop.batch_progress.load_state_dict(self._progress)
        lightning_values.restore_validation(trainer, self._validation, is_undone=True)
        lightning_values.restore_metrics(module, self._metrics)
        connector = trainer._logger_connector
        connector._logged_metrics = self._logged["logged"]
        connector._callback_metrics = self._logged["callback"]
        connector._progress_bar_metrics = self._logged["bar"]
        connector._first_loop_iter, connector._current_fx = self._logged["first"], self._logged["fx"]
        trainer.state.stage = self._stage
        lightning_ddp.let_hand_round(trainer, will=self._hands_round)
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
        self.evaluate = evaluate
        self._before: Before | None = None
        self._agreement = Agreement(trainer, ck)

    def run(self, stop: Callable[[BrokenOff], None]) -> Any:
        """Run one; broken off, it runs again, if `stop` returns.

        Args:
            stop: called where a stop is in force, when all is as it was before the evaluation.
        """
        while True:
            self._before = before = Before(self._trainer)
            try:
                self._agreement.begin(self._trainer.fit_loop.epoch_loop.val_loop)
                if self._agreement.is_told():
                    raise BrokenOff
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
        """Break it off where a stop is in force, on all ranks at the same batch, if it can be undone."""
        before = self._before
        if before is None or not self._agreement.is_told_after_batch():
            return
        if not self._agreement.any(not before.take_averages_out()):
            raise BrokenOff
        before.put_averages_in()
        self._agreement.end()
        log.warning(
            "a stop is in force, and a callback or the model has changed weights or buffers for this "
            "evaluation, or in it: it is finished first"
        )


def _averaging(trainer: Any) -> list[Any]:
    return [one for one in trainer.callbacks if is_a(one, "WeightAveraging")]
