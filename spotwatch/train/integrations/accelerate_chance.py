# SPDX-License-Identifier: Apache-2.0
"""The random state of the processor's generators, taken once a batch: cheaply, and put back for one fetch.

Which batches need it is in `accelerate_loaders`; what a save holds of chance is in `state.rng`.
"""

from __future__ import annotations

import ctypes
import random
from typing import Any

import numpy as np
import torch

# numpy's mt19937_state: 624 words and a position (numpy/random/src/mt19937/mt19937.h, 2.4).
_MT19937_BYTES = 624 * 4 + 4


class Chance:
    """Takes and puts back the global state of Python, numpy and torch on the processor."""

    def __init__(self) -> None:
        self._raw = b""
        self._numpy: dict[str, Any] = {}

    def take(self) -> dict[str, Any]:
        """Return the state as it is now, in values that a save can hold."""
        return {"python": random.getstate(), "numpy": self._take_numpy(), "torch": torch.get_rng_state()}

    def put(self, state: dict[str, Any]) -> None:
        """Make it so again."""
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])  # noqa: NPY002 - the legacy generator is what datasets draw from
        torch.set_rng_state(state["torch"])

    def _take_numpy(self) -> dict[str, Any]:
        # Asking takes numpy 30 microseconds, and most batches draw nothing from it. The second of two normal
        # numbers is drawn without a trace in the words, so a state that holds one is always asked for anew.
        bits: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]  # public, and not in its stubs
        if type(bits).__name__ != "MT19937":
            return self._ask_numpy()
        raw = ctypes.string_at(bits.ctypes.state_address, _MT19937_BYTES)
        if raw != self._raw or self._numpy["has_gauss"]:
            self._raw, self._numpy = raw, self._ask_numpy()
        return self._numpy

    def _ask_numpy(self) -> dict[str, Any]:
        state: dict[str, Any] = np.random.get_state(legacy=False)  # noqa: NPY002 - as above
        return state
