# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SLF001 - what a loop of Lightning iterates over has no public name
"""Whether a stop is in force, as all ranks see it after the same batch of a loop that trains nothing.

It does not know what is done then.
"""

from __future__ import annotations

from typing import Any

from spotwatch.train.checkpointer import Checkpointer
from spotwatch.train.integrations.lengths import length_of


class Agreement:
    """The ranks in one such loop after another.

    Args:
        trainer: whose they are.
        ck: says whether a stop is in force for this rank.
    """

    def __init__(self, trainer: Any, ck: Checkpointer) -> None:
        self._trainer = trainer
        self._ck = ck
        self._batches: float = 0

    def begin(self, loop: Any) -> None:
        """Find out after how many batches the ranks can agree, for some may have fewer.

        Args:
            loop: of evaluation, test or prediction, whose data is set up; on all ranks.
        """
        trainer = self._trainer
        batches = _batches(loop)
        if trainer.world_size > 1:
            import torch  # noqa: PLC0415 - trainers bring it; this package does not need it

            # Who does not know how many there are may have fewer than the others.
            mine = torch.tensor(batches or 0.0, device=trainer.strategy.root_device)
            self._batches = float(trainer.strategy.reduce(mine, reduce_op="min"))
        else:
            self._batches = float("inf")

    def end(self) -> None:
        """Agree no more in this loop."""
        self._batches = 0

    def is_told_after_batch(self) -> bool:
        """Tell whether a stop is in force for any rank; False where some may have no such batch."""
        if self._batches <= 0:
            return False
        self._batches -= 1
        return self.is_told()

    def is_told(self) -> bool:
        """Tell whether a stop is in force for any rank; all ranks must ask."""
        return self.any(self._ck.poll())

    def any(self, mine: bool) -> bool:
        """Tell whether it is so on any rank; all ranks must ask."""
        if self._trainer.world_size == 1:
            return mine
        return bool(self._trainer.strategy.reduce_boolean_decision(mine, all=False))


def _batches(loop: Any) -> float | None:
    """Return how many batches a loop has at least; None where a loader does not know its length."""
    combined = loop._combined_loader
    loaders = [] if combined is None else combined.flattened
    if None in map(length_of, loaders):
        return None
    batches = loop.max_batches
    return float(sum(batches) if combined is None or combined._mode == "sequential" else min(batches))
