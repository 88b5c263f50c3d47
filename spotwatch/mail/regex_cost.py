# SPDX-License-Identifier: Apache-2.0
"""How long a regular expression may search at worst, told from how it is written.

Python's `re` can neither be limited nor interrupted, and holds up every thread meanwhile. So it is counted,
before an expression is used, in how many ways it can be tried from one place of a text. It compiles nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

UNLIMITED = 400
"""What `*` and `+` count for: no text that is searched is longer."""
MAX_COST = 12_000
"""The most ways from one place; two gaps of `.{0,100}` have 10,201."""

# Blanks come one at a time in what is searched, so `\s+` has one way.
_BLANKS = frozenset({r"\s", " "})
_QUANTIFIER = re.compile(r"(?:([*+?])|\{(\d{0,4})(,?)(\d{0,4})\})[?+]?")
_GROUP = re.compile(r"\((?:\?(?:[:=!>]|<[=!]))?")
_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^()|\[\\]", re.DOTALL)
_PLAIN = re.compile(r"[^.\[\]^$\\]")

_TOO_MANY = (
    "it can be tried in too many ways from one place; bound each gap, as in .{0,80}, and have at most two"
)
_NESTED = "it repeats without bound what can itself be read in several ways, as in (a+)* or (a|ab)+"


class TooCostly(ValueError):
    """An expression that a hostile text could keep busy, or that cannot be counted; says what to write."""


def cost(source: str) -> int:
    """Return in how many ways `source` can be tried from one place of a text, at most `MAX_COST`.

    Raises:
        TooCostly: it is more, or cannot be told.
    """
    reader = _Reader(source)
    ways = reader.alternatives().ways
    if reader.at < len(source):
        raise TooCostly("a parenthesis is closed that was not opened")
    return ways


@dataclass(frozen=True, slots=True)
class _Part:
    ways: int
    literal: str | None
    """The one text that it matches; None: several, or any."""


@dataclass(slots=True)
class _Reader:
    source: str
    at: int = 0

    def alternatives(self) -> _Part:
        """Read `a|b|c`, up to the end or a closing parenthesis."""
        branches = [self.sequence()]
        while self.source.startswith("|", self.at):
            self.at += 1
            branches.append(self.sequence())
        return branches[0] if len(branches) == 1 else _Part(_limited(_ways_of_any(branches)), None)

    def sequence(self) -> _Part:
        ways, literal = 1, ""
        is_literal = True
        while self.at < len(self.source) and self.source[self.at] not in "|)":
            part = self.item()
            ways = _limited(ways * part.ways)
            is_literal = is_literal and part.literal is not None
            literal += part.literal or ""
        return _Part(ways, literal if is_literal else None)

    def item(self) -> _Part:
        if self.source[self.at] == "(":
            return self.repeated(self.group(), is_blank=False)
        atom = _ATOM.match(self.source, self.at)
        if atom is None:
            raise TooCostly("it ends within a class or after a backslash")
        self.at = atom.end()
        text = atom.group()
        if re.fullmatch(r"\\[1-9]", text):
            raise TooCostly("it refers back to a group, which cannot be counted")
        return self.repeated(_Part(1, text if _PLAIN.fullmatch(text) else None), is_blank=text in _BLANKS)

    def group(self) -> _Part:
        opening = _GROUP.match(self.source, self.at)
        if opening is None or self.source.startswith("?", opening.end()):
            raise TooCostly("it has flags, a name or a comment in a group; use (?:...)")
        self.at = opening.end()
        inner = self.alternatives()
        if not self.source.startswith(")", self.at):
            raise TooCostly("a parenthesis is not closed")
        self.at += 1
        return inner if opening.group() in ("(", "(?:") else _Part(inner.ways, None)

    def repeated(self, part: _Part, *, is_blank: bool) -> _Part:
        found = _QUANTIFIER.match(self.source, self.at)
        if found is None:
            return part
        self.at = found.end()
        least, most = _bounds(found)
        if is_blank and most == UNLIMITED:
            return _Part(1, None)
        if part.ways == 1:
            return _Part(_limited(most - least + 1), None)
        if most == UNLIMITED:
            raise TooCostly(_NESTED)
        ways = 0
        for times in range(least, most + 1):
            ways = _limited(ways + part.ways**times)
        return _Part(ways, None)


def _limited(ways: int) -> int:
    if ways > MAX_COST:
        raise TooCostly(_TOO_MANY)
    return ways


def _ways_of_any(branches: Sequence[_Part]) -> int:
    """Return how many ways several branches have together: of different words at most one fits at a place."""
    words = sorted(branch.literal.casefold() for branch in branches if branch.literal is not None)
    longest, chain = 0, list[str]()
    for word in words:
        while chain and not word.startswith(chain[-1]):
            chain.pop()
        chain.append(word)
        longest = max(longest, len(chain))
    return longest + sum(branch.ways for branch in branches if branch.literal is None)


def _bounds(found: re.Match[str]) -> tuple[int, int]:
    sign, least, comma, most = found.group(1, 2, 3, 4)
    if sign:
        return (1 if sign == "+" else 0), (1 if sign == "?" else UNLIMITED)
    low = min(int(least or 0), UNLIMITED)
    high = int(most) if most else (UNLIMITED if comma else low)
    if high < low:
        raise TooCostly(f"{found.group()} has its bounds the wrong way round")
    return low, min(high, UNLIMITED)
