# SPDX-License-Identifier: Apache-2.0
"""Another module of the program in `drawing_ways`. It draws only when asked."""

from __future__ import annotations

import numpy as np

RNG = np.random.default_rng(5)


def draw() -> float:
    """Return the next number."""
    return inner()


def inner() -> float:
    """Return it."""
    return float(RNG.random())
