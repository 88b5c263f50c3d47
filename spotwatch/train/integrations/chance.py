# SPDX-License-Identifier: Apache-2.0
"""The state of the processor's global random generators, noted before each batch in a few microseconds.

Most batches draw from none or one of them, and asking one for its state takes longer than all else here: 9
microseconds Python's, 30 numpy's. So what was noted last is given again while the memory that a draw changes
is the same: the place in the words, and a few of them, since all are others once each was drawn or a seed was
set. It is only ever compared. Where it is not laid out as expected, the generator is asked each time.
What a save holds of chance is in `state.rng`.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from collections.abc import Callable
from typing import Any

# 624 words and the place in them, in both: numpy/random/src/mt19937/mt19937.h, `mt19937_state` (numpy 2.4);
# Modules/_randommodule.c, `RandomObject`, behind the head of every object (CPython 3.11 to 3.14).
_MT19937_BYTES = 624 * 4 + 4
_MARK_BYTES = 6 * 4
"""The place and the words beside it; the first word alone is the same with every seed."""
_HEAD_BYTES = object.__basicsize__
# numpy/random/src/legacy/legacy-distributions.h, `aug_bitgen_t`: a flag, and the normal number kept for
# the next draw, which leaves no trace in the words.
_KEPT_NORMAL = struct.Struct("=i4xd")


class Notes:
    """Notes the state of the generators of Python, numpy and torch on the processor, and puts it back."""

    def __init__(self) -> None:
        self._python = _Last(random.getstate)
        self._numpy = _Last(lambda: sys.modules["numpy"].random.get_state(legacy=False))
        self._sees_python = _is_python_as_expected()
        self._normal_at: int | None = None
        self._has_looked = False
        self._python_of: tuple[Any, Any] = (None, None)
        self._numpy_of: tuple[Any, Any, Any] = (None, None, None)

    def take(self) -> dict[str, Any]:
        """Return the state as it is now; what has not moved is the same object as before."""
        state: dict[str, Any] = {
            "python": self._of_python(),
            "torch": sys.modules["torch"].default_generator.get_state(),
        }
        if "numpy" in sys.modules:
            state["numpy"] = self._of_numpy(sys.modules["numpy"].random)
        return state

    def put(self, state: dict[str, Any]) -> None:
        """Make it so again."""
        random.setstate(state["python"])
        sys.modules["torch"].set_rng_state(state["torch"])
        if "numpy" in state:
            sys.modules["numpy"].random.set_state(state["numpy"])

    def _of_python(self) -> Any:
        if not self._sees_python:
            return random.getstate()
        # The one whose methods the module's functions are.
        source: Any = random._inst  # noqa: SLF001
        seen, mark = self._python_of
        if seen is not source:
            mark = _memory(id(source) + _HEAD_BYTES, _MARK_BYTES)
            self._python_of = source, mark
        return self._python.unless_moved((mark.raw, source.gauss_next))

    def _of_numpy(self, module: Any) -> Any:
        if not self._has_looked:
            self._normal_at, self._has_looked = _find_kept_normal(module), True
        bits = module.get_bit_generator()
        if self._normal_at is None or type(bits).__name__ != "MT19937":
            return module.get_state(legacy=False)
        seen, mark, kept = self._numpy_of
        if seen is not bits:
            mark = _memory(bits.ctypes.state_address + _MT19937_BYTES - _MARK_BYTES, _MARK_BYTES)
            kept = _memory(id(module.get_state.__self__) + self._normal_at, _KEPT_NORMAL.size)
            self._numpy_of = bits, mark, kept
        return self._numpy.unless_moved((mark.raw, kept.raw))


class _Last:
    """The last state of one generator, and what its memory was then."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask
        self._memory: object = None
        self._state: Any = None

    def unless_moved(self, memory: object) -> Any:
        """Return the last state if this was its memory, else ask."""
        if memory != self._memory:
            self._state, self._memory = self._ask(), memory
        return self._state


def _memory(address: int, size: int) -> Any:
    """Return what shows these bytes as they are now in its `raw`; quicker than to copy them each time."""
    return (ctypes.c_char * size).from_address(address)


def _words_of(source: random.Random) -> bytes:
    return ctypes.string_at(id(source) + _HEAD_BYTES, _MT19937_BYTES)


def _is_python_as_expected() -> bool:
    """Tell whether generators lie in memory as CPython's do, by one whose state is known."""
    if sys.implementation.name != "cpython":
        return False
    source = random.Random(7)  # noqa: S311 - compared, not used
    source.random()
    state = source.getstate()[1]
    return _words_of(source) == b"".join(w.to_bytes(4, sys.byteorder) for w in (state[-1], *state[:-1]))


def _find_kept_normal(module: Any) -> int | None:
    """Return where in a `RandomState` the normal number for the next draw is kept, and the flag before it."""
    if sys.implementation.name != "cpython":
        return None
    source = module.RandomState(7)
    number = source.standard_normal() / 3
    state = source.get_state(legacy=False) | {"has_gauss": 1, "gauss": number}

    def memory(has_gauss: int) -> bytes:
        source.set_state(state | {"has_gauss": has_gauss})
        return ctypes.string_at(id(source), type(source).__basicsize__)

    begin = memory(1).find(struct.pack("=d", number)) - _KEPT_NORMAL.size + struct.calcsize("=d")
    if begin < 0:
        return None
    are_flags = all(_KEPT_NORMAL.unpack_from(memory(flag), begin) == (flag, number) for flag in (0, 1))
    return begin if are_flags else None
