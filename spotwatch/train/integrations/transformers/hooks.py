# SPDX-License-Identifier: Apache-2.0
"""Which of a Trainer's methods are replaced, on the one object, and how a callback finds its Trainer.

A callback is given neither the Trainer nor a moment after what the Trainer does at the end of a step. It
decides nothing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from spotwatch.errors import ConfigError

_MARK = "_spotwatch"

PUBLIC = {
    "train": ("resume_from_checkpoint", "trial", "ignore_keys_for_eval"),
    "set_initial_training_values": ("args", "dataloader"),
    "get_eval_dataloader": ("eval_dataset",),
    "get_test_dataloader": ("test_dataset",),
    "get_batch_samples": ("epoch_iterator", "num_batches", "device"),
}
PRIVATE = {
    "_init_training_state": (
        *("max_steps", "num_update_steps_per_epoch", "num_train_epochs", "resume_from_checkpoint", "trial"),
    ),
    "_prepare_for_training": ("max_steps", "train_dataloader", "resume_from_checkpoint"),
    "_run_epoch": (
        *("epoch", "train_dataloader", "num_update_steps_per_epoch", "trial", "ignore_keys_for_eval"),
        *(
            "model",
            "start_time",
            "resume_from_checkpoint",
            "epochs_trained",
            "steps_trained_in_current_epoch",
        ),
    ),
    "_maybe_log_save_evaluate": (
        *("tr_loss", "grad_norm", "model", "trial", "epoch", "ignore_keys_for_eval", "start_time"),
        "learning_rate",
    ),
    "_evaluate": ("trial", "ignore_keys_for_eval", "skip_scheduler"),
    "_load_rng_state": ("checkpoint",),
    "_finalize_training": ("trial", "num_train_samples", "start_time"),
}
_READ = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step")


def check(kind: Any) -> None:
    """Refuse a Trainer that does not have what is replaced.

    Args:
        kind: the class `transformers.Trainer`.

    Raises:
        ConfigError: names what is missing.
    """
    missing = []
    for name, wanted in (PUBLIC | PRIVATE).items():
        method = getattr(kind, name, None)
        has = inspect.signature(method).parameters if callable(method) else {}
        missing += [f"{name}({', '.join(wanted)})"] if not set(wanted) <= set(has) else []
    loop = getattr(kind, "_inner_training_loop", None)
    names = loop.__code__.co_names if inspect.isfunction(loop) else ()
    missing += [name for name in _READ if name not in names]
    if missing:
        raise ConfigError(
            f"transformers {version('transformers')} has another Trainer than those that were tested: "
            f"it lacks {'; '.join(missing)}. Install one that docs/integrations/transformers.md names"
        )


def install(trainer: Any, by_name: dict[str, Callable[..., Any]]) -> None:
    """Replace methods of this Trainer; each replacement is given the original first.

    Raises:
        ConfigError: they are replaced already.
    """
    if hasattr(trainer, _MARK):
        raise ConfigError("this Trainer has a SpotwatchCallback already: give it one")
    setattr(trainer, _MARK, tuple(by_name))
    for name, replacement in by_name.items():
        original = getattr(trainer, name)
        setattr(trainer, name, functools.wraps(original)(functools.partial(replacement, original)))


def trainer_in_making() -> Any:
    """Return the Trainer whose `__init__` is calling its callbacks now, from the frames; None without one."""
    from transformers import Trainer  # noqa: PLC0415 - a callback of it is running

    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "__init__" and isinstance(frame.f_locals.get("self"), Trainer):
            return frame.f_locals["self"]
        frame = frame.f_back
    return None
