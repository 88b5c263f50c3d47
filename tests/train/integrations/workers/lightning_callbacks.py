# SPDX-License-Identifier: Apache-2.0
"""Callbacks of Lightning's lives that switch something when an epoch or an evaluation begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def switching(pl: Any, case: dict[str, Any]) -> list[Any]:
    """Return those that the case asks for."""
    callbacks = [_finetuning(pl)] if case.get("thaws") else []
    if case.get("swaps"):
        callbacks.append(_averages(pl))
    if case.get("accumulates"):
        numbers = {int(epoch): batches for epoch, batches in case["accumulates"].items()}
        callbacks.append(pl.callbacks.GradientAccumulationScheduler(numbers))
    return callbacks


def csv(pl: Any, case: dict[str, Any], store: str) -> list[Any]:
    """Return a logger that begins anew in each life, if the case asks for it."""
    return [pl.loggers.CSVLogger(f"{store}-csv", version=case["csv"])] if "csv" in case else []


def kept(trainer: Any) -> dict[str, Any]:
    """Return what those that save checkpoints remember of them."""
    ours = trainer.checkpoint_callbacks
    return {
        "saved": [one._last_global_step_saved for one in ours],
        "kept": [
            {
                "best": [Path(one.best_model_path).name, str(one.best_model_score)],
                "worst": [Path(one.kth_best_model_path).name, str(one.kth_value)],
                "all": {Path(path).name: str(score) for path, score in one.best_k_models.items()},
            }
            for one in ours
        ],
    }


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


def _averages(pl: Any) -> Any:
    class Averages(pl.Callback):
        """Puts averages in for each evaluation, as many do by hand, so that nothing but the values tells."""

        def __init__(self) -> None:
            self.averages: dict[str, Any] = {}

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            for name, value in pl_module.named_parameters():
                old = self.averages.get(name, value.detach())
                self.averages[name] = old * 0.9 + value.detach() * 0.1

        def _swap(self, _: Any, pl_module: Any) -> None:
            weights = dict(pl_module.named_parameters())
            for name, average in self.averages.items():
                self.averages[name] = weights[name].detach().clone()
                weights[name].data.copy_(average)

        on_validation_start = on_validation_end = _swap

        def state_dict(self) -> dict[str, Any]:
            return {"averages": self.averages}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.averages = state_dict["averages"]

    return Averages()
