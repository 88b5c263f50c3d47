# SPDX-License-Identifier: Apache-2.0
"""What hooks of a Lightning training switch and nobody saves: frozen parameters, modes, accumulated batches.

Callbacks such as BaseFinetuning and GradientAccumulationScheduler set them when an epoch begins, which a life
that goes on in the middle of it does not see. What the program itself makes otherwise than in the life before
is left as the program has it. Nor may a model come to have other parts than it began with: the next life
makes those of the beginning. It does not know when to save.
"""

from __future__ import annotations

from typing import Any

from spotwatch.errors import ConfigError
from spotwatch.train.integrations import lightning_values


class Switches:
    """The switches of a trainer and its model.

    Args:
        trainer: before it has trained or restored anything in this life, all set up.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._at_start = self._now()
        self._numbers = lightning_values.numbers(trainer.lightning_module)
        self._names = self._names_now()

    def state(self, *, is_last: bool) -> dict[str, Any]:
        """Return how they are, and how they were when this life began, as plain values.

        Args:
            is_last: training is over; what has become of the model is what was wanted.

        Raises:
            ConfigError: the model has other parameters or buffers than when this life began: what is saved
                would fit no model of a later life.
        """
        others = sorted(self._names_now() ^ self._names)
        if others and not is_last:
            raise ConfigError(
                f"the model's state_dict has changed in this life: {', '.join(others[:4])}"
                f"{', ...' if others[4:] else ''}; no later life could load it, so nothing is saved: prune, "
                f"quantize or add layers in configure_model(), or when training is over"
            )
        return {"at_start": self._at_start | {"numbers": self._numbers}, "now": self._now()}

    def restore_numbers(self, state: dict[str, Any], metrics: dict[str, Any]) -> None:
        """Leave out of `metrics` the numbers that the program sets otherwise than in the life before.

        Args:
            state: from `state`, of that life.
            metrics: what it saved of the metrics.
        """
        for name, numbers in state["at_start"]["numbers"].items():
            for key, number in numbers.items():
                if repr(self._numbers.get(name, {}).get(key)) != repr(number):  # no NaN is another
                    metrics.get(name, {}).get("own", {}).pop(key, None)

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

    def _names_now(self) -> set[str]:
        module = self._trainer.lightning_module
        if any(
            getattr(type(module), name).__module__ != "torch.nn.modules.module"
            for name in ("state_dict", "load_state_dict")
        ):
            return set()  # the program's own way, which may leave out what is frozen
        return set(module.state_dict())

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
