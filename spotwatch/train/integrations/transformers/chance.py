# SPDX-License-Identifier: Apache-2.0
"""The state of the global random generators, in plain values, and noted often at little cost.

Which generators there are is known in `spotwatch.train.state.rng`. It does not know when to note.
"""

from __future__ import annotations

import ctypes
import random
import sys
from typing import Any

from spotwatch.train.state import rng

Chance = dict[str, Any]
"""The state of the global random generators, in plain values."""

# 624 words and the place in them: what numpy's MT19937 has moved if it was drawn from (numpy 2.4,
# numpy/random/src/mt19937/mt19937.h, `mt19937_state`). Only ever compared, never read as a state.
_MOVES_BYTES = 2500


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
        made["torch"] = bytes(made["torch"].numpy())
    if "cuda" in made:
        made["cuda"] = [bytes(one.numpy()) for one in made["cuda"]]
    return made


class Notes:
    """Notes the state of the generators on the CPU before each batch: some 10 microseconds.

    To copy numpy's takes longer than all others together (34 of 44 microseconds), so it is done only when
    that one has moved.
    """

    def __init__(self) -> None:
        self._numpy: Any = None
        self._moved: bytes | None = None

    def take(self) -> dict[str, Any]:
        """Return what `plain` takes."""
        torch = sys.modules["torch"]
        state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
        if "numpy" in sys.modules:
            state["numpy"] = self._of_numpy(sys.modules["numpy"].random)
        return state

    def _of_numpy(self, source: Any) -> Any:
        bits = source.get_bit_generator()
        is_known = type(bits).__name__ == "MT19937"
        moved = ctypes.string_at(bits.ctypes.state_address, _MOVES_BYTES) if is_known else None
        # A normal number that is kept for the next draw is given out without a move.
        if moved is None or moved != self._moved or self._numpy["has_gauss"]:
            self._numpy, self._moved = source.get_state(legacy=False), moved
        return self._numpy


def _tensor(torch: Any, state: bytes) -> Any:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
