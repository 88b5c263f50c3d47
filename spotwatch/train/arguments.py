# SPDX-License-Identifier: Apache-2.0
"""The numbers that a training program gives us: which are taken, as what, and how the others are refused.

It knows no defaults and no store. numpy's and torch's whole numbers count as such. Standard library only.
"""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import SupportsIndex

from spotwatch.errors import ConfigError
from spotwatch.train.registry.manifest import MOST_STEPS

_MOST_SHOWN = 80


def whole(name: str, value: SupportsIndex, *, least: int = 1) -> int:
    """Return `value` as an int.

    Raises:
        ConfigError: it is no whole number, or below `least`.
    """
    number = _index(value)
    if number is None or number < least:
        raise ConfigError(f"{name}={_shown(value)}: wants a whole number, at least {least}")
    return number


def seconds(name: str, value: object, *, may_be_zero: bool = False, least: float = 0.0) -> float:
    """Return `value` as a float; infinite is allowed and means for ever.

    Raises:
        ConfigError: it is no number, or negative, or zero where that makes no sense, or below `least`.
    """
    number = _real(name, value, "seconds", may_be_zero=may_be_zero)
    if number < least:
        raise ConfigError(f"{name}={_shown(value)}: wants seconds, at least {least:g}")
    return number


def rate(name: str, value: object) -> float:
    """Return `value`, in bytes per second, as a float; infinite is allowed and means no limit.

    Raises:
        ConfigError: it is no number above zero.
    """
    return _real(name, value, "bytes per second", may_be_zero=False)


def _real(name: str, value: object, unit: str, *, may_be_zero: bool) -> float:
    wanted = f"{unit}, {'at least 0' if may_be_zero else 'above 0'}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigError(f"{name}={_shown(value)}: wants {wanted}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    # NaN compares false with everything, and is refused by that.
    if not (number > 0 or (may_be_zero and number == 0)):
        raise ConfigError(f"{name}={_shown(value)}: wants {wanted}")
    return number


def steps(value: SupportsIndex) -> int:
    """Return the number of finished steps that `value` means.

    Raises:
        ConfigError: it is no whole number, negative, or too large for the name of a checkpoint.
    """
    number = _index(value)
    if number is None or not 0 <= number <= MOST_STEPS:
        raise ConfigError(f"step {_shown(value)}: wants a whole number of finished steps, 0 to {MOST_STEPS}")
    return number


def _index(value: SupportsIndex) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return f"({type(value).__name__} of too many digits to show)"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
