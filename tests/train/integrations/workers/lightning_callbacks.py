# SPDX-License-Identifier: Apache-2.0
"""Callbacks of Lightning's lives that switch something when an epoch begins."""

from __future__ import annotations

from typing import Any


def switching(pl: Any, case: dict[str, Any]) -> list[Any]:
    """Return those that the case asks for."""
    callbacks = [_finetuning(pl)] if case.get("thaws") else []
    if case.get("accumulates"):
        numbers = {int(epoch): batches for epoch, batches in case["accumulates"].items()}
        callbacks.append(pl.callbacks.GradientAccumulationScheduler(numbers))
    return callbacks


def _finetuning(pl: Any) -> Any:
    class Finetuning(pl.callbacks.BaseFinetuning):
        """Freezes the first layers, averages included, and lets them learn from the second epoch on."""

        def freeze_before_training(self, pl_module: Any) -> None:
            self.freeze(pl_module.layers[:2], train_bn=False)

        def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
            if epoch == 1:
                self.unfreeze_and_add_param_group(pl_module.layers[:2], optimizer)
                pl_module.layers[2].eval()

    return Finetuning()
