# SPDX-License-Identifier: Apache-2.0
"""The words by which mails are told apart: `patterns.toml`, and a file of the user's before it.

It does not decide what a mail is (`classifying`), and has no opinion on times or Droplets but which of their
names are common words.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, cast

from spotwatch.errors import ConfigError
from spotwatch.mail.model import MailClass
from spotwatch.mail.regex_cost import TooCostly, cost
from spotwatch.masking import escape

Where = Literal["any", "subject", "text", "sender"]

MAX_PATTERNS = 200
MAX_FILE_BYTES = 262144

TOPIC = "topic"
"""What a pattern says of a mail about Spot Droplets."""
BULLETIN = "bulletin"
"""What a pattern says of a mail to many."""
DOUBTFUL = "doubtful"
"""What a pattern says of a mail that may carry a stranger's words, or is about the whole account."""
HANDED_ON = "handed_on"
"""What a pattern says of a mail that hands on what people write, wherever in it that is said."""
GENERAL = "general"
"""What a pattern says of a statement about Spot Droplets at large, which is no fact about one."""

NO_FACT = "no_fact"
"""What a pattern says of a statement that is no fact of our Droplet: denied, supposed, of another thing."""
SPARED = "spared"
"""What a pattern says of a statement whose Droplets stay."""
LABEL = "label"
"""What a pattern says of words before a colon that only a value follows."""
LEAD = "lead"
"""What a pattern says of words before a colon that the mail's own words may follow."""

_SAYS = (
    *(c.value for c in MailClass if c is not MailClass.OTHER),
    BULLETIN,
    DOUBTFUL,
    HANDED_ON,
    GENERAL,
    NO_FACT,
    SPARED,
    LEAD,
    LABEL,
    TOPIC,
)
_WHERE: tuple[Where, ...] = ("any", "subject", "text", "sender")
_KEYS = frozenset({"name", "says", "regex", "unless", "where"})
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Words that say something of a mail."""

    name: str
    says: str
    """A class of mails, or one of the words above: `BULLETIN`, `DOUBTFUL`, ..."""
    regex: re.Pattern[str]
    unless: re.Pattern[str] | None = None
    """What takes a statement out again."""
    where: Where = "any"

    def is_in(self, statement: str) -> bool:
        """Tell whether `statement` says it: one sentence, at most as long as `regex_cost.UNLIMITED`."""
        return self.regex.search(statement) is not None and (
            self.unless is None or self.unless.search(statement) is None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Patterns:
    """All patterns, the user's first."""

    ordered: tuple[Pattern, ...]
    common_words: frozenset[str]
    """Case-folded words that are no evidence of a Droplet that is called so."""


@cache
def default_patterns() -> Patterns:
    """Return the patterns that come with spotwatch."""
    source = files(__package__).joinpath("patterns.toml").read_text(encoding="utf-8")
    return _parse(source, "spotwatch/mail/patterns.toml")


def load_patterns(path: Path) -> Patterns:
    """Return the patterns of a user's file, and the default ones that it does not replace.

    Args:
        path: TOML, in the form of `patterns.toml`.

    Raises:
        ConfigError: it cannot be read or has mistakes: all of them, each with its place.
    """
    try:
        with path.open("rb") as file:
            body = file.read(MAX_FILE_BYTES + 1)
        if len(body) > MAX_FILE_BYTES:
            raise ConfigError(f"mail.patterns_file {path}: more than {MAX_FILE_BYTES} bytes")
        source = body.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"mail.patterns_file {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"mail.patterns_file {path}: not UTF-8 at byte {error.start}") from error
    own, default = _parse(source, f"mail.patterns_file {path}"), default_patterns()
    replaced = {pattern.name for pattern in own.ordered}
    return Patterns(
        ordered=(*own.ordered, *(p for p in default.ordered if p.name not in replaced)),
        common_words=own.common_words | default.common_words,
    )


def _parse(source: str, place: str) -> Patterns:
    """Return what a file says.

    Raises:
        ConfigError: all its mistakes.
    """
    try:
        table = tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{place}: no TOML: {escape(str(error))}") from error
    problems = [
        f"{place}: unknown key {escape(key)!r}; have common_words and [[pattern]]"
        for key in table
        if key not in ("pattern", "common_words")
    ]
    words = table.get("common_words", "")
    if not isinstance(words, str):
        problems.append(f"{place}: common_words is no text; write words with blanks between them")
        words = ""
    rows = table.get("pattern", [])
    if not isinstance(rows, list) or len(rows) > MAX_PATTERNS:
        problems.append(
            f"{place}: pattern is no list of at most {MAX_PATTERNS}; write [[pattern]] above each"
        )
        rows = []
    ordered: dict[str, Pattern] = {}
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            problems.append(f"{place}: pattern {number} is no table; write [[pattern]] above each")
            continue
        name = row.get("name")
        here = f"{place}: pattern {number}" + (f" ({escape(name)})" if isinstance(name, str) else "")
        found = _mistakes(row)
        if name in ordered:
            found.append("its name is given twice")
        problems.extend(f"{here}: {mistake}" for mistake in found)
        if not found:
            ordered[row["name"]] = _pattern(row)
    if problems:
        raise ConfigError(*problems)
    folded = unicodedata.normalize("NFKC", words).casefold()
    return Patterns(ordered=tuple(ordered.values()), common_words=frozenset(folded.split()))


def _mistakes(row: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with one pattern."""
    found = [
        f"unknown key {escape(key)!r}; have {', '.join(sorted(_KEYS))}" for key in row if key not in _KEYS
    ]
    name = row.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        found.append("it needs a name of small letters, digits and hyphens")
    if row.get("says") not in _SAYS:
        found.append(f"says {escape(repr(row.get('says')))}; use {', '.join(_SAYS)}")
    if row.get("where", "any") not in _WHERE:
        found.append(f"where is {escape(repr(row['where']))}; use {', '.join(_WHERE)}")
    for key in ("regex", "unless"):
        source = row.get(key, None if key == "regex" else "(?!)")
        if not isinstance(source, str) or not source:
            found.append(f"{key} is no expression; write it between three single quotes")
            continue
        try:
            cost(source)
            re.compile(source, re.IGNORECASE)
        except TooCostly as error:
            found.append(f"{key}: {error}")
        except (re.error, OverflowError, RecursionError) as error:
            found.append(f"{key} is no regular expression: {escape(str(error))}")
    return found


def _pattern(row: Mapping[str, Any]) -> Pattern:
    return Pattern(
        name=row["name"],
        says=row["says"],
        regex=re.compile(row["regex"], re.IGNORECASE),
        unless=re.compile(row["unless"], re.IGNORECASE) if "unless" in row else None,
        where=cast("Where", row.get("where", "any")),
    )
