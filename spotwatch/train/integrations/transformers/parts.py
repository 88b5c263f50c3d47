# SPDX-License-Identifier: Apache-2.0
"""Which objects of a Trainer are saved as they are: its model, what trains it, and models that follow it.

What the Trainer counts is in `counters`. It saves nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from spotwatch.errors import ConfigError
from spotwatch.train.integrations.transformers.frozen import Frozen
from spotwatch.train.integrations.transformers.rates import Rates


def parts(trainer: Any, also: str | Iterable[str] = ()) -> dict[str, Any]:
    """Return them by the names to track them under; None for one that this Trainer does not use.

    Args:
        trainer: the Trainer.
        also: frozen tensors that are saved beside the adapters of a PeftModel, as `adapters` has it.

    Raises:
        ConfigError: `also` is given for another model.
    """
    model = _tracked(trainer.model, also)
    return {
        "model": model,
        "optimizer": getattr(trainer.optimizer, "optimizer", trainer.optimizer),
        "scheduler": trainer.lr_scheduler,
        "scaler": getattr(trainer.accelerator, "scaler", None),
        "rates": Rates(trainer),
        # Adapters have it themselves.
        "frozen": Frozen(model) if model is trainer.model else None,
    } | _following(trainer)


def _tracked(model: Any, also: str | Iterable[str]) -> Any:
    """Return what is to be saved of a model: of one with adapters, these alone."""
    peft = sys.modules.get("peft")
    if peft is None or not isinstance(model, peft.PeftModel):
        if also:
            raise ConfigError(
                f"also={also!r} names frozen tensors of a PeftModel, and a {type(model).__name__} is saved "
                f"whole: leave it out"
            )
        return model
    from spotwatch.train.integrations.peft import adapters  # noqa: PLC0415 - only for a model of peft's

    return adapters(model, also=also)


def _following(trainer: Any) -> dict[str, Any]:
    """Return the reference models that callbacks of TRL (`sync_ref_model`) move towards the trained one."""
    models = [
        callback.ref_model
        for callback in trainer.callback_handler.callbacks
        if any(kind.__name__ == "SyncRefModelCallback" for kind in type(callback).__mro__)
    ]
    return {f"reference{number or ''}": model for number, model in enumerate(models)}
