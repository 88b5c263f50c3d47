# SPDX-License-Identifier: Apache-2.0
"""What a random generator is, and how a collator comes by its own. It does not look for any."""

from __future__ import annotations

import random
import sys
from typing import Any


def is_generator(value: Any) -> bool:
    """Tell whether it is a random generator that has a state."""
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom)
    numpy, torch = sys.modules.get("numpy"), sys.modules["torch"]
    kinds = () if numpy is None else (numpy.random.Generator, numpy.random.RandomState)
    return isinstance(value, (torch.Generator, *kinds))


def make_generator(owner: Any) -> None:
    """Have a collator of transformers make the generator that it would make at its first batch."""
    if getattr(owner, "seed", None) is None or getattr(owner, "generator", None) is not None:
        return
    make = getattr(type(owner), "create_rng", None)
    if make is not None:
        make(owner)
