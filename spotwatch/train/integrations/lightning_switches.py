# SPDX-License-Identifier: Apache-2.0
"""What hooks of a Lightning training switch and nobody saves: frozen parameters, modes, accumulated batches.

Callbacks such as BaseFinetuning and GradientAccumulationScheduler set them when an epoch begins, which a life
that goes on in the middle of it does not see. What the program itself makes otherwise than in the life before
is left as the program has it. It does not know when to save.
"""

from __future__ import annotations

from typing import Any


class Switches:
    """The switches of a trainer and its model.

    Args:
        trainer: before it has trained or restored anything in this life, all set up.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._at_start = self._now()

    def state(self) -> dict[str, Any]:
        """Return how they are, and how they were when this life began, as plain values."""
        return {"at_start": self._at_start, "now": self._now()}

    def restore_model(self, state: dict[str, Any]) -> None:
        """Set those of the model as they were.

        Args:
            state: from `state`, of a life before.
        """
        module = self._trainer.lightning_module
        for name, parameter in module.named_parameters():
            if self._is_of_the_run("frozen", name, state):
                parameter.requires_grad_(name not in state["now"]["frozen"])
        for name, part in module.named_modules():
            if self._is_of_the_run("evaluating", name, state):
                part.training = name not in state["now"]["evaluating"]
            if _has_statistics(part) and self._is_of_the_run("untracked", name, state):
                part.track_running_stats = name not in state["now"]["untracked"]

    def restore(self, state: dict[str, Any]) -> None:
        """Set all as they were; callbacks that look at them when training starts must have looked."""
        self.restore_model(state)
        if state["at_start"]["accumulated"] == self._at_start["accumulated"]:
            self._trainer.accumulate_grad_batches = state["now"]["accumulated"]

    def _is_of_the_run(self, kind: str, name: str, state: dict[str, Any]) -> bool:
        return (name in state["at_start"][kind]) == (name in self._at_start[kind])

    def _now(self) -> dict[str, Any]:
        module = self._trainer.lightning_module
        parts = list(module.named_modules())
        return {
            "frozen": [name for name, one in module.named_parameters() if not one.requires_grad],
            "evaluating": [name for name, part in parts if not part.training],
            # A frozen BatchNorm counts no averages.
            "untracked": [
                name for name, part in parts if _has_statistics(part) and not part.track_running_stats
            ],
            "accumulated": self._trainer.accumulate_grad_batches,
        }


def _has_statistics(part: Any) -> bool:
    return hasattr(part, "track_running_stats")
