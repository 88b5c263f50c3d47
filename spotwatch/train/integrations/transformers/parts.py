# SPDX-License-Identifier: Apache-2.0
"""Which objects of a Trainer are saved as they are: its model, what trains it, and models that follow it.

What the Trainer counts is in `counters`. It saves nothing.
"""

from __future__ import annotations

import sys
from typing import Any


def parts(trainer: Any) -> dict[str, Any]:
    """Return them by the names to track them under; None for one that this Trainer does not use."""
    return {
        "model": _tracked(trainer.model),
        "optimizer": getattr(trainer.optimizer, "optimizer", trainer.optimizer),
        "scheduler": trainer.lr_scheduler,
        "scaler": getattr(trainer.accelerator, "scaler", None),
    } | _following(trainer)


def _tracked(model: Any) -> Any:
    """Return what is to be saved of a model: of one with adapters, these alone."""
    peft = sys.modules.get("peft")
    if peft is None or not isinstance(model, peft.PeftModel):
        return model
    from spotwatch.train.integrations.peft import adapters  # noqa: PLC0415 - only for a model of peft's

    return adapters(model)


def _following(trainer: Any) -> dict[str, Any]:
    """Return the reference models that callbacks of TRL (`sync_ref_model`) move towards the trained one."""
    models = [
        callback.ref_model
        for callback in trainer.callback_handler.callbacks
        if any(kind.__name__ == "SyncRefModelCallback" for kind in type(callback).__mro__)
    ]
    return {f"reference{number or ''}": model for number, model in enumerate(models)}
