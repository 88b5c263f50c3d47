# SPDX-License-Identifier: Apache-2.0
"""What one value must be: a truth, a number, a text, a path, a list, a measure.

Strict for TOML, whose values have types; text from the environment is read as what is wanted. It does not
know where a value stands: `config_types` puts the messages at their paths.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from spotwatch.config_layers import EnvText

MAX_SECONDS = 366 * 86400.0
"""Beyond any sensible setting, and small enough that adding it to a date cannot overflow."""
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_ABOVE_ZERO = ("interval_seconds", "timeout_seconds", "reflush_seconds", "max_body_bytes")


def read_truth(value: Any, _: Any) -> bool:
    """Return a truth value; `"false"` is none, except from the environment."""
    if isinstance(value, EnvText) and value.strip().lower() in _TRUTH:
        return _TRUTH[value.strip().lower()]
    if not isinstance(value, bool):
        raise TypeError(f"{show(value)} is neither true nor false")
    return value


def read_whole_number(value: Any, _: Any) -> int:
    """Return a whole number."""
    if isinstance(value, EnvText):
        try:
            return int(value)
        except ValueError:
            raise ValueError(f"{show(value)} is no whole number") from None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{show(value)} is no whole number")
    return value


def read_number(value: Any, _: Any) -> float:
    """Return a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float | EnvText):
        raise TypeError(f"{show(value)} is no number")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError(f"{show(value)} is no number") from None
    if not math.isfinite(number):
        raise ValueError(f"{show(value)} is no number that one can count to")
    return number


def read_text(value: Any, _: Any) -> str:
    """Return a text."""
    if isinstance(value, datetime):  # TOML has a type for times; written without quotes it means the same
        return value.isoformat()
    if not isinstance(value, str):
        raise TypeError(f"{show(value)} is no text; put it in quotes")
    if "\0" in value:
        raise ValueError("contains a NUL character")
    return str(value)


def read_path(value: Any, _: Any) -> Path:
    """Return an absolute path."""
    path = value if isinstance(value, Path) else Path(read_text(value, str))
    if not path.is_absolute():
        raise ValueError(f"{show(str(value))} is not an absolute path")
    return path


def check_measure(name: str, value: Any) -> None:
    """Refuse a duration or size that cannot be meant, by the ending of its name."""
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        if number < 0 or (number == 0 and name.endswith(_ABOVE_ZERO)):
            raise ValueError(f"{number:g} must be {'above 0' if name.endswith(_ABOVE_ZERO) else '0 or more'}")
        if name.endswith("_seconds") and number > MAX_SECONDS:
            raise ValueError(f"{number:g} is more than a year ({MAX_SECONDS:g} s)")


def read_items(value: Any, *, tables: bool) -> list[Any]:
    """Return a list; from the environment: commas, or JSON."""
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, EnvText):
        # The comma form cannot carry a comma: a command line in a variable is written as a JSON list.
        if value.lstrip().startswith("["):
            return [EnvText(v) if isinstance(v, str) else v for v in read_json(value)]
        return [EnvText(part.strip()) for part in value.split(",") if part.strip()]
    if tables and isinstance(value, Mapping) and all(k.isascii() and k.isdigit() for k in value):
        numbers = sorted(int(k) for k in value)
        if numbers != list(range(len(numbers))):
            raise ValueError(f"has numbers {numbers}; they go from 0 without a gap")
        return [value[k] for k in sorted(value, key=int)]
    raise ValueError(f"{show(value)} is no list")


def read_json(text: str) -> Any:
    """Return what JSON `text` holds."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{show(text)} is no JSON") from None


def show(value: object) -> str:
    """Return a value as an error message shows it."""
    text = repr(str(value) if isinstance(value, str) else value)
    return text if len(text) <= 80 else f"{text[:79]}…"  # noqa: PLR2004 - a line of an error message
