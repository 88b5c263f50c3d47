# SPDX-License-Identifier: Apache-2.0
"""Schedules of Lightning's lives, and who asks how many steps there are to be, which makes loaders early."""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import LinearLR, StepLR


def schedule(optimizer: Any, trainer: Any, case: dict[str, Any]) -> Any:
    """Return the schedule by steps that the case asks for."""
    if case.get("estimates") != "optimizers":
        return StepLR(optimizer, step_size=3, gamma=0.8)
    steps = trainer.estimated_stepping_batches
    return LinearLR(optimizer, 1.0, 0.1, total_iters=max(steps, 10))  # of streams nobody knows


def asking(pl: Any, case: dict[str, Any]) -> list[Any]:
    """Return a callback that asks before ours takes the trainer's hooks, if the case wants it."""

    class Asks(pl.Callback):
        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            if stage == "fit":
                self.steps = trainer.estimated_stepping_batches

    return [Asks()] if case.get("estimates") == "setup" else []
