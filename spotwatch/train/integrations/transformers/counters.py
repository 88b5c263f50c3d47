# SPDX-License-Identifier: Apache-2.0
"""What a Trainer counts for itself, as plain values: its state, flags, losses not yet logged, its callbacks.

Model, optimizer and scheduler are tracked as they are. It does not know steps or saves.
"""

from __future__ import annotations

import copy
import logging
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from spotwatch.errors import ConfigError
from spotwatch.train.integrations.transformers import chance, course, feed

log = logging.getLogger("spotwatch.train")

_COUNTED = (
    *("epoch", "global_step", "num_input_tokens_seen", "total_flos", "log_history"),
    *("best_metric", "best_global_step", "best_model_checkpoint"),
)
_SINCE_LOGGING = ("_metrics", "_total_train_tokens", "_stored_metrics", "stats")
"""What the trainers of TRL (1.16) gather between two logs: most the first two, CPO's and ORPO's the third,
that of online DPO the last. Those that keep samples from one step to the next have more."""


class Counters:
    """The part of a run's state that only its Trainer has; tracked under one name.

    Args:
        trainer: whose.
        place: the place in the data.
    """

    def __init__(self, trainer: Any, place: feed.Feed) -> None:
        self._trainer = trainer
        self._place = place
        self._frozen: dict[str, Any] | None = None
        self._since = time.monotonic()
        self.phase = course.START
        self.begun: dict[str, Any] = {"epoch": 0, "taken": 0, "chance": None}
        """Where the first epoch begins, and with which random state, after a checkpoint of the Trainer's."""
        self.evaluations = 0
        """How many evaluations were finished, in all lives."""
        self.last: tuple[Any, Any] = (None, None)
        """Gradient norm and learning rate of the last step of this epoch: its end logs them again."""
        self.seconds_before = 0.0
        """How long earlier lives have trained."""
        self.restored: dict[str, Any] | None = None
        """What was saved, once a checkpoint is restored."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything, as it was when it was frozen, or as it is."""
        return self._read() if self._frozen is None else self._frozen

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what an epoch's loop does not reset; the rest waits in `restored`."""
        trainer = self._trainer
        self.restored = state
        self.phase, self.evaluations = state["phase"], state["evaluations"]
        self.begun = state["begun"] or self.begun
        self.seconds_before = state["seconds"]
        self.last = state["last"][0], state["last"][1]
        for name, value in state["state"].items():
            setattr(trainer.state, name, value)
        best = trainer.state.best_model_checkpoint
        if best is not None and not Path(best).is_dir():
            log.warning(
                "the best checkpoint so far, %s, is not on this machine: a better one may come, else the "
                "weights of the last step are kept; let output_dir outlive the machine to have it",
                best,
            )
            trainer.state.best_model_checkpoint = None
        for name, value in state["since_logging"].items():
            if name in _gathered(trainer):
                _put(trainer, name, value)
        self._restore_callbacks(state["callbacks"])

    def begin(self) -> None:
        """Put back what the Trainer sets to nothing when it begins to train."""
        self._since = time.monotonic()
        if self.restored is None:
            return
        trainer, loss = self._trainer, self.restored["loss"]
        trainer._tr_loss.fill_(loss["running"])  # noqa: SLF001 - it has no public name, as those below
        trainer._total_loss_scalar = loss["total"]  # noqa: SLF001
        trainer._globalstep_last_logged = loss["logged_at"]  # noqa: SLF001
        trainer._initial_global_step = loss["began_at"]  # noqa: SLF001
        trainer.current_flos = loss["flos"]

    def put_flags_back(self) -> None:
        """Put back what the Trainer was about to do; more steps than before may be wanted now."""
        if self.restored is None:
            return
        trainer, state = self._trainer, self._trainer.state
        for name, value in self.restored["control"].items():
            setattr(trainer.control, name, value)
        if self.restored["state"]["global_step"] >= self.restored["max_steps"]:
            trainer.control.should_training_stop = False
        if state.global_step >= state.max_steps:
            trainer.control.should_training_stop = True

    def freeze(self) -> None:
        """Be what is now, with the random state of now, until `thaw`."""
        self._frozen = copy.deepcopy(self._read() | {"chance": chance.capture()})

    def thaw(self) -> None:
        """Be what is, again."""
        self._frozen = None

    def _read(self) -> dict[str, Any]:
        trainer = self._trainer
        running = getattr(trainer, "_tr_loss", None)
        return {
            "phase": self.phase,
            "begun": self.begun if self.phase == course.START else None,
            "evaluations": self.evaluations,
            "last": plain(self.last),
            "fits": _fitting(trainer.args),
            "state": {name: plain(getattr(trainer.state, name)) for name in _COUNTED},
            "max_steps": trainer.state.max_steps,
            "control": trainer.control.state()["args"],
            "loss": {
                "running": 0.0 if running is None else float(running),
                "total": getattr(trainer, "_total_loss_scalar", 0.0),
                "logged_at": getattr(trainer, "_globalstep_last_logged", 0),
                "began_at": getattr(trainer, "_initial_global_step", 0),
                "flos": trainer.current_flos,
            },
            "since_logging": {name: plain(getattr(trainer, name)) for name in _gathered(trainer)},
            "callbacks": [[name, callback.state()["attributes"]] for name, callback in self._callbacks()],
            "seconds": self.seconds_before + time.monotonic() - self._since,
            "place": self._place.state_dict(),
            "chance": None,
        }

    def _callbacks(self) -> list[tuple[str, Any]]:
        from transformers.trainer_callback import ExportableState  # noqa: PLC0415 - this is asked of a Trainer

        callbacks = self._trainer.callback_handler.callbacks
        return [(type(one).__name__, one) for one in callbacks if isinstance(one, ExportableState)]

    def _restore_callbacks(self, saved: list[Any]) -> None:
        left = list(saved)
        for name, callback in self._callbacks():
            mine = next((one for one in left if one[0] == name), None)
            if mine is None:
                log.warning("the checkpoint has no state of the callback %s: it begins anew", name)
                continue
            left.remove(mine)
            for attribute, value in mine[1].items():
                setattr(callback, attribute, value)
        for name, _ in left:
            log.warning("the checkpoint has state of the callback %s, which is not there any more", name)


def _fitting(args: Any) -> dict[str, Any]:
    return {
        "per_device_train_batch_size": args.per_device_train_batch_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "world_size": args.world_size,
    }


def expect_fitting(state: dict[str, Any], args: Any) -> None:
    """Refuse what would make the place in the data mean another one.

    Args:
        state: what `Counters.state_dict` returned.
        args: of this life.

    Raises:
        ConfigError: an argument differs.
    """
    now = _fitting(args)
    differs = [
        f"{name} was {value}, and is {now[name]}"
        for name, value in state["fits"].items()
        if value != now[name]
    ]
    if differs and not args.ignore_data_skip:
        raise ConfigError(
            f"{'; '.join(differs)}: the data would go on at another place; set what was, or "
            f"ignore_data_skip=True to begin the epoch's data anew"
        )


def plain(value: Any) -> Any:
    """Return what was logged as values that can be saved: what is no number, text or list is kept as text."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if getattr(value, "size", None) == 1 or getattr(value, "numel", lambda: 0)() == 1:
        return value.item()
    return str(value)


def _gathered(trainer: Any) -> tuple[str, ...]:
    # In another library's Trainer such a name may mean anything.
    is_of_trl = any(kind.__module__.partition(".")[0] == "trl" for kind in type(trainer).__mro__)
    return tuple(name for name in _SINCE_LOGGING if is_of_trl and hasattr(trainer, name))


def _put(trainer: Any, name: str, value: Any) -> None:
    if not isinstance(value, dict):
        setattr(trainer, name, value)
        return
    held = getattr(trainer, name)
    for key, item in value.items():
        if isinstance(item, dict):
            # What is deleted at each log is made as the trainer makes it, for it is to make lists itself.
            inner = held[key] if isinstance(held, defaultdict) else held.setdefault(key, {})
            inner.clear()
            inner.update(item)
        else:
            held[key] = item
