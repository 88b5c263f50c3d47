# SPDX-License-Identifier: Apache-2.0
"""Lengths of time as people write them: `90`, `90s`, `2m`, `2h`.

No moments in time, and no sums such as `1h30m`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

_FORM = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smh]?)", re.ASCII)
_UNIT_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Return the seconds that `text` names.

    Raises:
        ValueError: it is negative, or no number with s, m, h or nothing behind it.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no duration; write 90, 90s, 2m or 2h")
    number, unit = found.groups()
    return float(number) * _UNIT_SECONDS[unit]


# Generic for type checkers only: click before 8.2 has no such thing at run time.
if TYPE_CHECKING:
    _FloatParam = click.ParamType[float]
else:
    _FloatParam = click.ParamType


class _Duration(_FloatParam):
    name = "duration"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds; a default may be given as a number."""
        if isinstance(value, (int, float)):
            return float(value)
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = _Duration()
"""A click type whose value is seconds."""
