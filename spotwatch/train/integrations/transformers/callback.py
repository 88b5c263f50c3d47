# SPDX-License-Identifier: Apache-2.0
"""What a user adds to a Trainer: one callback around one Checkpointer.

What happens during training is in `session`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers import Trainer, TrainerCallback

from spotwatch.errors import ConfigError
from spotwatch.train.checkpointer import Checkpointer
from spotwatch.train.integrations.transformers import fit, hooks
from spotwatch.train.integrations.transformers.session import Session
from spotwatch.train.integrations.versions import require
from spotwatch.train.loop import Health


class SpotwatchCallback(TrainerCallback):
    """Save a Trainer's run so that its machine can be taken away at any moment, and go on from there.

    `Trainer(..., callbacks=[SpotwatchCallback(Checkpointer(...))])` is all: `train()` then resumes by itself,
    saves after whole steps, and leaves by `SystemExit(ck.exit_code)` once a stop is ordered and the state is
    durable. A finished training returns as always.

    Args:
        checkpointer: of this run; it is entered and left by `train()`.
        exits: False: at a stop `train()` returns what was trained so far; look at `checkpointer.exit_code`.
        healthy: False, or a function that returns it, for a state that must not be gone on from; asked at
            saves only.
        rereads: with `dataloader_num_workers`, load the batches of an interrupted epoch again, and throw
            them away, so that what workers draw at random comes out as if nothing had happened. Without it
            they are passed over, which takes no time and is exact for data without chance in it.
        also: of a PeftModel, patterns of names (`*.base_layer.weight`) of frozen tensors that are saved too,
            such as those that PiSSA or LoftQ have changed before training.

    Raises:
        ConfigError: the installed transformers does not fit.
    """

    def __init__(
        self,
        checkpointer: Checkpointer,
        *,
        exits: bool = True,
        healthy: Health = True,
        rereads: bool = False,
        also: str | Iterable[str] = (),
    ) -> None:
        require("transformers", "5.19", "5.24")
        hooks.check(Trainer)
        if not isinstance(checkpointer, Checkpointer):
            raise ConfigError(
                f"SpotwatchCallback wants a Checkpointer, not {checkpointer!r}: "
                f"SpotwatchCallback(Checkpointer('s3://bucket/checkpoints', run_id='r1'))"
            )
        self._checkpointer = checkpointer
        self._options: dict[str, Any] = {
            "exits": exits,
            "healthy": healthy,
            "rereads": rereads,
            "also": also,
        }
        self._session: Session | None = None

    def attach(self, trainer: Any) -> None:
        """Serve a Trainer that exists already; `Trainer(callbacks=[...])` does so by itself.

        Raises:
            ConfigError: it, or this callback, is taken.
        """
        if self._session is not None and self._session.trainer is trainer:
            return
        if self._session is not None:
            raise ConfigError("this SpotwatchCallback serves another Trainer: a run has one of each")
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        session = Session(trainer, self._checkpointer, **self._options)
        hooks.install(trainer, session.replacements())
        fit.switch_off_own(trainer)
        self._session = session

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Find the Trainer that is being made."""
        del args, state, control, kwargs
        trainer = hooks.trainer_in_making()
        if trainer is not None:
            self.attach(trainer)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuse a Trainer that was not found."""
        del args, state, control, kwargs
        if self._session is None:
            raise ConfigError(
                "this SpotwatchCallback was added to a Trainer that exists already: call "
                "callback.attach(trainer) instead of trainer.add_callback(callback)"
            )
        self._session.begin()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note that an epoch has ended."""
        del args, state, control, kwargs
        if self._session is not None:
            self._session.end_epoch()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave an evaluation that takes too long."""
        del args, state, control, kwargs
        if self._session is not None:
            self._session.look_up()
