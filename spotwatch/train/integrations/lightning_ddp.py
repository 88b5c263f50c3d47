# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SLF001 - which buffers are in no checkpoint, a module tells nowhere else
"""What each rank under DDP holds apart from the others: buffers, and whether the first rank's come next.

DDP hands the first rank's buffers round before a forward pass, but only where the one before it was of
training and handed gradients round. So evaluations may be of each rank's own averages.
"""

from __future__ import annotations

from typing import Any

_FLAG = "require_forward_param_sync"


def capture(trainer: Any) -> dict[str, Any]:
    """Return it as it is now, without copies; empty where there is no DDP."""
    if not _is_ddp(trainer):
        return {}
    module = trainer.lightning_module
    # The first rank's are saved with the model.
    buffers = {
        f"{path}.{name}" if path else name: buffer
        for path, part in module.named_modules()
        for name, buffer in part.named_buffers(recurse=False)
        if trainer.global_rank and name not in part._non_persistent_buffers_set
    }
    return {"hands_round": hands_round(trainer), "buffers": buffers}


def restore(trainer: Any, state: dict[str, Any]) -> None:
    """Put it back, once the model has been restored."""
    if not state or not _is_ddp(trainer):
        return
    for name, buffer in trainer.lightning_module.named_buffers():
        if name in state["buffers"]:
            buffer.copy_(state["buffers"][name])
    let_hand_round(trainer, will=state["hands_round"])


def hands_round(trainer: Any) -> bool:
    """Tell whether the next forward pass gives the other ranks the first one's buffers."""
    return _is_ddp(trainer) and bool(getattr(trainer.strategy.model, _FLAG))


def let_hand_round(trainer: Any, *, will: bool) -> None:
    """Let the next forward pass do so, or not, where there is DDP."""
    if _is_ddp(trainer):
        setattr(trainer.strategy.model, _FLAG, will)


def _is_ddp(trainer: Any) -> bool:
    return type(trainer.strategy.model).__name__ == "DistributedDataParallel"
