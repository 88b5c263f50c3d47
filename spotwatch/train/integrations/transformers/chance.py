# SPDX-License-Identifier: Apache-2.0
"""The state of the global random generators, in plain values.

Which generators there are is known in `spotwatch.train.state.rng`. It does not know when to look.
"""

from __future__ import annotations

from typing import Any

from spotwatch.train.state import rng

Chance = dict[str, Any]
"""The state of the global random generators, in plain values."""


def capture() -> Chance:
    """Return the state of all."""
    return plain(rng.capture())


def restore(chance: Chance) -> None:
    """Put back those that are in it."""
    import torch  # noqa: PLC0415 - only a trainer has it

    state = dict(chance)
    if "torch" in state:
        state["torch"] = _tensor(torch, state["torch"])
    if "cuda" in state:
        state["cuda"] = [_tensor(torch, one) for one in state["cuda"]]
    rng.restore(state)


def plain(state: dict[str, Any]) -> Chance:
    """Return it without tensors."""
    made = dict(state)
    if "torch" in made:
        made["torch"] = _bytes(made["torch"])
    if "cuda" in made:
        made["cuda"] = [_bytes(one) for one in made["cuda"]]
    return made


def _bytes(state: Any) -> bytes:
    return state if isinstance(state, bytes) else bytes(state.numpy())


def _tensor(torch: Any, state: bytes) -> Any:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
