# SPDX-License-Identifier: Apache-2.0
"""Whether the style on an element keeps a person from seeing what is in it.

Only what stands in `style=` is known, no style sheet. White text is unseen as long as no element around it
has a background of its own.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_NOTHING = re.compile(r"0*\.?0*(?:px|pt|em|rem|ex|ch|vw|vh|%)?")
_FAR = re.compile(r"-[0-9]{3,}(?:\.[0-9]+)?(?:px|pt|em|rem|vw|vh|%)?")
_ALMOST_NOTHING = re.compile(r"(?:0|0?\.[0-9]+|1)(?:\.[0-9]+)?(?:px|pt|%)?")
_PLACES = ("left", "top", "right", "bottom", "margin-left", "margin-top", "text-indent", "margin")
_CLEAR = frozenset({"transparent", "rgba(0,0,0,0)", "#0000", "#00000000"})
_WHITE = frozenset(
    {"white", "#fff", "#ffffff", "#fffffe", "#fefefe", "rgb(255,255,255)", "rgba(255,255,255,1)"}
)
_NO_BACKGROUND = frozenset({"", "none", "inherit", "initial", "unset"}) | _CLEAR | _WHITE


class Look(NamedTuple):
    """What a style does to its element."""

    hides: bool
    is_white: bool
    """Its text cannot be told from a page without a background."""
    has_background: bool


def look(style: str) -> Look:
    """Return what `style` does, of which the last of two declarations of a name counts."""
    rules: dict[str, str] = {}
    for declaration in style.lower().split(";"):
        name, _, value = declaration.partition(":")
        rules[name.strip()] = value.replace("!important", "").strip()
    color = rules.get("color", "").replace(" ", "")
    background = (rules.get("background-color") or rules.get("background", "")).replace(" ", "")
    return Look(
        hides=_hides(rules) or color in _CLEAR,
        is_white=color in _WHITE,
        has_background=background not in _NO_BACKGROUND,
    )


def _hides(rules: dict[str, str]) -> bool:
    return (
        rules.get("display") == "none"
        or rules.get("visibility") in ("hidden", "collapse")
        or rules.get("mso-hide") == "all"
        or any(
            _is_nothing(rules.get(name, "")) for name in ("font-size", "opacity", "max-height", "max-width")
        )
        or (
            rules.get("overflow") == "hidden"
            and any(_ALMOST_NOTHING.fullmatch(rules.get(name, "")) for name in ("height", "width"))
        )
        or any(_FAR.match(rules.get(name, "")) for name in _PLACES)
        or rules.get("clip", "").replace(" ", "").startswith(("rect(0", "rect(1px"))
        or rules.get("transform", "").replace(" ", "").startswith("scale(0)")
        or rules.get("font-size", "") in ("1px", "0.1px")
    )


def _is_nothing(value: str) -> bool:
    return value[:1] in ("0", ".") and _NOTHING.fullmatch(value) is not None
