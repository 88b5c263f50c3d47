# SPDX-License-Identifier: Apache-2.0
"""Callbacks of Lightning's lives that switch something when an epoch begins."""

from __future__ import annotations

from typing import Any


def finetuning(pl: Any) -> Any:
    """Return one that freezes the first layers, averages included, and lets them learn in the second epoch."""

    class Finetuning(pl.callbacks.BaseFinetuning):
        def freeze_before_training(self, pl_module: Any) -> None:
            self.freeze(pl_module.layers[:2], train_bn=False)

        def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
            if epoch == 1:
                self.unfreeze_and_add_param_group(pl_module.layers[:2], optimizer)
                pl_module.layers[2].eval()

    return Finetuning()


def accumulating(pl: Any, scheduling: dict[str, int]) -> Any:
    """Return one that adds up the gradients of more batches from some epoch on."""
    numbers = {int(epoch): batches for epoch, batches in scheduling.items()}
    return pl.callbacks.GradientAccumulationScheduler(numbers)
