# SPDX-License-Identifier: Apache-2.0
"""Whether the next forward pass under DDP gives the other ranks the first one's buffers.

DDP hands them round before a forward pass, but only where the one before it was of training and handed
gradients round. So evaluations may be of each rank's own averages. The buffers themselves are saved by rank
with the model, where they differ.
"""

from __future__ import annotations

from typing import Any

_FLAG = "require_forward_param_sync"


def hands_round(trainer: Any) -> bool:
    """Tell whether it does; False where there is no DDP."""
    return _is_ddp(trainer) and bool(getattr(trainer.strategy.model, _FLAG))


def let_hand_round(trainer: Any, *, will: bool) -> None:
    """Let it do so, or not, where there is DDP."""
    if _is_ddp(trainer):
        setattr(trainer.strategy.model, _FLAG, will)


def _is_ddp(trainer: Any) -> bool:
    return type(trainer.strategy.model).__name__ == "DistributedDataParallel"
