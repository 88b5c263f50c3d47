# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SLF001 - Lightning has no public way out but a failure
"""The way out of a Lightning trainer that was told to stop; and stops that come where nothing is trained.

It saves nothing.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any, NoReturn

from spotwatch.train.checkpointer import DURABLE, FINISHED, NOT_DURABLE, Checkpointer
from spotwatch.train.integrations.lightning_agreement import Agreement

log = logging.getLogger("spotwatch.train")


def leave(trainer: Any, package: str, code: int, *, exits: bool) -> NoReturn:
    """Leave as Lightning leaves what is done: torn down, loggers closed, nothing failed.

    Args:
        trainer: in one of its entry points.
        package: `lightning.pytorch` or `pytorch_lightning`.
        code: to exit with, once all of that is done.
        exits: False lets the entry point return.
    """
    teardown = trainer._teardown

    def tear_down() -> None:
        del trainer._teardown
        teardown()
        if exits:
            trainer.state.status = type(trainer.state.status)("interrupted")
            raise SystemExit(code)

    trainer._teardown = tear_down
    exceptions = importlib.import_module(f"{package}.utilities.exceptions")
    raise exceptions._TunerExitException


class Untrained:
    """A `validate`, `test` or `predict`, which has nothing to save and is broken off after a batch.

    Args:
        trainer: about to set up.
        ck: of the run, outside its `with`.
        package: `lightning.pytorch` or `pytorch_lightning`.
        exits: leave by SystemExit.
    """

    def __init__(self, trainer: Any, ck: Checkpointer, package: str, *, exits: bool) -> None:
        self._trainer = trainer
        self._ck = ck
        self._package = package
        self._exits = exits
        # What training has left is durable, or it is not: this adds nothing to it.
        self._code = DURABLE if ck.exit_code in (FINISHED, DURABLE) else NOT_DURABLE
        self._has_ended = False
        self._agreement = Agreement(trainer, ck)
        self._loop = getattr(trainer, f"{trainer.state.fn.value}_loop")
        self._setup_data, self._loop.setup_data = self._loop.setup_data, self._on_setup_data
        trainer._signal_connector.register_signal_handlers = lambda: None
        ck._link.begin()

    def _on_setup_data(self) -> None:
        # All ranks come here, also those that have no batch.
        self._setup_data()
        self._agreement.begin(self._loop)
        if self._agreement.is_told():
            self._break_off()

    def batch_ended(self) -> None:
        """Leave where a stop is in force, on all ranks after the same batch."""
        if self._agreement.is_told_after_batch():
            self._break_off()

    def _break_off(self) -> NoReturn:
        log.warning("a stop is in force: %s is broken off", self._trainer.state.fn)
        self.end(told=True)
        leave(self._trainer, self._package, self._code, exits=self._exits)

    def end(self, *, told: bool = False) -> None:
        """Hear nothing any more; more than once is harmless."""
        if self._has_ended:
            return
        self._has_ended = True
        vars(self._trainer._signal_connector).pop("register_signal_handlers", None)
        vars(self._loop).pop("setup_data", None)
        code = self._code if told else self._ck.exit_code
        phase = {FINISHED: "finished", DURABLE: "durable"}.get(code, "failed")
        self._ck._link.end(phase, "", leaving=told, exit_code=code)
