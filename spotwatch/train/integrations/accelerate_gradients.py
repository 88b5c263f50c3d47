# SPDX-License-Identifier: Apache-2.0
"""Whether a step was made, and whether gradients are in hand that none has used, which a save does not hold.

Accelerate knows of those that it accumulates itself. Of those that a program accumulates by hand it is learnt
by `Accelerator.backward`, which makes them, and by torch's optimizers, which use them. A backward pass of
torch's own is not seen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from spotwatch.train.integrations.accelerate_passes import Course

log = logging.getLogger("spotwatch.train")

_MANY = 128
"""More batches than a program accumulates by hand for one step; a notice cannot wait for many more."""


class Gradients:
    """Tell both, from `watch` to `leave`.

    Args:
        accelerator: whose `backward` makes gradients.
        optimizers: torch's own, of those that it has prepared; without any all steps are elsewhere.
        course: of the run, which is told of the backward passes.
    """

    def __init__(self, accelerator: Any, optimizers: Iterable[Any], course: Course) -> None:
        self._accelerator = accelerator
        self._course = course
        self._optimizers = list(optimizers)
        self._restore: Callable[[], None] | None = None
        self._is_said = False
        self._passes = 0
        """How many backward passes were made since a step."""
        self._stepped: set[int] = set()
        """The ids of those whose weights an optimizer has stepped since a step was counted."""
        self._waits = 0
        """How often in a row gradients were in hand as a step was to be counted."""

    def watch(self) -> None:
        """Begin to look."""
        if not self._optimizers:
            return
        # Of all optimizers, for one that is prepared may leave its step to another inside. A step that a
        # scaler skips does not call it; then the program drops its gradients.
        hook = register_optimizer_step_post_hook(self._has_stepped)
        backward = self._accelerator.backward

        def watched(*args: Any, **kwargs: Any) -> Any:
            result = backward(*args, **kwargs)
            self._passes += 1
            self._course.backwards += 1
            return result

        own = vars(self._accelerator).get("backward")
        self._accelerator.backward = watched

        def restore() -> None:
            hook.remove()
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
        are_by_hand, self._passes = self._are_by_hand(), 0
        return are_by_hand

    @property
    def are_in_hand(self) -> bool:
        """Tell whether there are some: inside Accelerate's accumulation, or made by hand and not dropped."""
        return not self._accelerator.sync_gradients or self._are_by_hand()

    def end_step(self) -> bool:
        """Tell whether a step is done, and let what gradients it has left be of no use.

        After an optimizer's step there may be some, made to be looked at; those of an optimizer that has not
        stepped are being accumulated.
        """
        if not self._accelerator.sync_gradients:
            return False
        if not self._passes or not self._exist(apart_from=self._stepped):
            self._waits = 0
        elif not self._have_waited():
            return False
        self._passes = 0
        self._stepped.clear()
        return True

    def _have_waited(self) -> bool:
        """Tell whether it is too long that no step was seen: then there is one that cannot be."""
        self._waits += 1
        if self._waits <= _MANY:
            return False
        if not self._is_said:
            self._is_said = True
            log.warning(
                "run.step() was called %d times after accelerator.backward, and no step of a torch optimizer "
                "over prepared weights was seen: each call counts as a step from here on, until one is; to "
                "accumulate more batches by hand, call run.step() only where the optimizer has stepped",
                self._waits,
            )
        return True

    def _are_by_hand(self) -> bool:
        if self._passes and not self._exist():
            self._passes = 0
        return self._passes > 0

    def _has_stepped(self, optimizer: Any, *_: Any) -> None:
        ours = [one for one in self._optimizers if one is optimizer]
        if not ours:
            weights = {id(weight) for weight in _weights(optimizer)}
            ours = [one for one in self._optimizers if any(id(weight) in weights for weight in _weights(one))]
        if ours:
            self._stepped.update(map(id, ours))
            self._passes = self._waits = 0

    def _exist(self, apart_from: Iterable[int] = ()) -> bool:
        return any(
            weight.grad is not None
            for one in self._optimizers
            if id(one) not in apart_from
            for weight in _weights(one)
        )


def _weights(optimizer: Any) -> Iterable[Any]:
    return (weight for group in optimizer.param_groups for weight in group["params"])
