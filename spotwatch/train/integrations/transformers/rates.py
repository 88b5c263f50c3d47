# SPDX-License-Identifier: Apache-2.0
"""What an optimizer was begun with (rate, weight decay, betas, ...), and the rate it goes on with.

A checkpoint's optimizer overrules what the arguments say in a later life; the schedule is that of the
arguments. It says so, and restores neither optimizer nor scheduler.
"""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger("spotwatch.train")

_ARGUMENTS = {"initial_lr": "learning_rate", "lr": "learning_rate"}


class Rates:
    """Knows it; to be tracked after optimizer and scheduler, which are restored before it then.

    Args:
        trainer: all set up, before it has trained or restored anything in this life.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._begun = [_options(group) for group in trainer.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the options of each group, as the run began with them, and the rates by the schedule."""
        return {"begun": self._begun, "scheduled": self._scheduled()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Say which options are others now, and take the rate of the next step from this life's schedule."""
        differs = {
            f"{_ARGUMENTS.get(name, name)} was {was[name]} when the run began, and is {now[name]} now"
            for was, now in zip(state["begun"], self._begun, strict=False)
            for name in sorted(was.keys() & now.keys())
            if was[name] != now[name]
        }
        if differs:
            log.warning(
                "%s: passed over, for the optimizer goes on with what the checkpoint has; for other values "
                "start another run_id",
                "; ".join(sorted(differs)),
            )
        self._begun = state["begun"]
        if state["scheduled"] != self._scheduled():
            self._follow_schedule()

    def _scheduled(self) -> list[float] | None:
        """Return the rate of each group that the schedule has for the next step; None where others decide."""
        schedule = self._trainer.lr_scheduler
        is_trainers = getattr(self._trainer, "_created_lr_scheduler", False)
        # Only in such a one, made by the Trainer, it depends on nothing but the step.
        if type(schedule).__name__ != "LambdaLR" or not is_trainers:
            return None
        step, factors = schedule.last_epoch, schedule.lr_lambdas
        return [base * factor(step) for base, factor in zip(schedule.base_lrs, factors, strict=True)]

    def _follow_schedule(self) -> None:
        """Have those rates, for those of the checkpoint are another schedule's."""
        schedule, groups = self._trainer.lr_scheduler, self._trainer.optimizer.param_groups
        rates, wanted = [group["lr"] for group in groups], self._scheduled()
        # A program that has set others means them.
        if wanted is None or rates != schedule.get_last_lr() or rates == wanted:
            return
        if all(isinstance(rate, float) for rate in rates):
            for group, rate in zip(groups, wanted, strict=True):
                group["lr"] = rate
            schedule._last_lr = wanted  # noqa: SLF001 - as torch sets it with a rate
            log.info("the schedule is another one now: the next step has the rate %s, not %s", wanted, rates)


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """Return what a group has been given, as plain values; its rate as that before any schedule."""
    options = {}
    for name, value in group.items():
        plain = list(value) if isinstance(value, tuple) else value
        items = plain if isinstance(plain, list) else [plain]
        is_rate = name == "lr" and "initial_lr" in group
        if not is_rate and name != "params" and all(type(one) in (bool, int, float, str) for one in items):
            options[name] = plain
    return options
