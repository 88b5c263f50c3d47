# SPDX-License-Identifier: Apache-2.0
"""Whether gradients are in hand that no step has used yet, which a save does not hold.

Accelerate knows of those that it accumulates itself. Of those that a program accumulates by hand it is learnt
by `Accelerator.backward`, which makes them, and by the optimizers, which use them. A backward pass of torch's
own is not seen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from spotwatch.train.integrations.accelerate_passes import Course

log = logging.getLogger("spotwatch.train")

_MANY = 1000
"""More backward passes than any program makes for one step."""


class Gradients:
    """Tell whether there are some, from `watch` to `leave`.

    Args:
        accelerator: whose `backward` makes them.
        optimizers: torch's own, of those that it has prepared; without any all steps are elsewhere.
        course: of the run, which is told of the backward passes.
    """

    def __init__(self, accelerator: Any, optimizers: Iterable[Any], course: Course) -> None:
        self._accelerator = accelerator
        self._course = course
        self._optimizers = list(optimizers)
        self._hooks: list[Any] = []
        self._restore: Callable[[], None] | None = None
        self._passes = 0
        """How many backward passes were made since a step."""

    def watch(self) -> None:
        """Begin to look."""
        if not self._optimizers:
            return
        # A step that a scaler skips calls none of these; then the program drops its gradients.
        self._hooks = [one.register_step_post_hook(self._are_used) for one in self._optimizers]
        backward = self._accelerator.backward
        self._course.sees_backwards = True

        def watched(*args: Any, **kwargs: Any) -> Any:
            result = backward(*args, **kwargs)
            self._passes += 1
            self._course.backwards += 1
            if self._passes == _MANY and self._accelerator.sync_gradients:
                log.warning(
                    "%d times accelerator.backward, and no step of a prepared optimizer: steps are not "
                    "counted, and nothing is saved; give accelerator.prepare(...) the optimizer that steps",
                    _MANY,
                )
            return result

        own = vars(self._accelerator).get("backward")
        self._accelerator.backward = watched

        def restore() -> None:
            if own is None:
                del self._accelerator.backward
            else:
                self._accelerator.backward = own

        self._restore = restore

    def leave(self) -> bool:
        """Look no more, and forget those made by hand; return whether there were some."""
        if self._restore is not None:
            self._restore()
            self._restore = None
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        are_by_hand, self._passes = self._are_by_hand(), 0
        return are_by_hand

    @property
    def are_in_hand(self) -> bool:
        """Tell whether there are some: inside Accelerate's accumulation, or made by hand and not dropped."""
        return not self._accelerator.sync_gradients or self._are_by_hand()

    def _are_by_hand(self) -> bool:
        if self._passes and not self._exist():
            self._passes = 0
        return self._passes > 0

    def _are_used(self, *_: Any) -> None:
        self._passes = 0

    def _exist(self) -> bool:
        groups = (group for one in self._optimizers for group in one.param_groups)
        return any(weight.grad is not None for group in groups for weight in group["params"])
