# SPDX-License-Identifier: Apache-2.0
"""What a Trainer may not be asked for together with us, and what to ask for instead.

It replaces nothing but the Trainer's own checkpoint at a SIGTERM.
"""

from __future__ import annotations

import logging
import signal
from typing import Any

from spotwatch.errors import ConfigError

log = logging.getLogger("spotwatch.train")

_HOLDING_WEIGHTS = {"BEMACallback", "PEFTAdapterEMACallback"}
"""Callbacks of TRL (1.16) that average weights into tensors of their own."""


def refuse(trainer: Any, trial: object) -> None:
    """Refuse what does not fit, all at once, before anything is trained.

    Raises:
        ConfigError: says what to do.
    """
    args, plugin = trainer.args, getattr(trainer.accelerator.state, "fsdp_plugin", None)
    problems = []
    if trainer.is_deepspeed_enabled:
        problems.append(
            "DeepSpeed keeps its state to itself: use FSDP2 (fsdp='full_shard', fsdp_config={'version': 2})"
        )
    if plugin is not None and getattr(plugin, "fsdp_version", 1) != 2:  # noqa: PLR2004 - the name of a version
        problems.append("FSDP1 cannot be saved: use FSDP2 (fsdp_config={'version': 2})")
    if str(args.device).startswith("xla"):
        problems.append("XLA devices are not supported")
    if args.auto_find_batch_size:
        problems.append(
            "auto_find_batch_size begins again in the same process, and another machine may find another "
            "size: set per_device_train_batch_size to what fits"
        )
    if trial is not None or trainer.hp_search_backend is not None:
        problems.append("a hyperparameter search is many runs: give each a Trainer and a run_id of its own")
    problems += [
        f"{type(callback).__name__} averages weights that no save would hold: train without it"
        for callback in trainer.callback_handler.callbacks
        if _HOLDING_WEIGHTS & {kind.__name__ for kind in type(callback).__mro__}
    ]
    if problems:
        raise ConfigError(*problems)


def switch_off_own(trainer: Any) -> None:
    """Take away the Trainer's own checkpoint at a SIGTERM (`enable_jit_checkpoint`), and its handler."""
    for callback in list(trainer.callback_handler.callbacks):
        if type(callback).__name__ != "JITCheckpointCallback":
            continue
        trainer.remove_callback(callback)
        before = getattr(callback.jit_manager, "_original_sigterm_handler", None)
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
        log.info("enable_jit_checkpoint is switched off: spotwatch saves at a SIGTERM")
