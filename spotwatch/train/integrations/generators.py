# SPDX-License-Identifier: Apache-2.0
"""What a random generator is, and how a collator comes by its own. It does not look for any.

Other objects are asked for nothing: what an attribute of theirs does, or raises, is not known.
"""

from __future__ import annotations

import random
import sys
from types import FunctionType
from typing import Any


def is_generator(value: Any) -> bool:
    """Tell whether it is a random generator that has a state."""
    kind = type(value)
    if issubclass(kind, random.Random):
        return not issubclass(kind, random.SystemRandom)
    numpy, torch = sys.modules.get("numpy"), sys.modules["torch"]
    kinds = () if numpy is None else (numpy.random.Generator, numpy.random.RandomState)
    return issubclass(kind, (torch.Generator, *kinds))


def make_generator(owner: Any) -> None:
    """Have a collator, as those of transformers, make the generator that it would make at its first batch."""
    make: Any = getattr(type(owner), "create_rng", None)
    # A program's own collator may do as those.
    if not isinstance(make, FunctionType):
        return
    has = vars(owner)
    if has.get("seed") is not None and has.get("generator", make) is None:
        make(owner)
