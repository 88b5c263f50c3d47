# SPDX-License-Identifier: Apache-2.0
"""What the statements of a mail were found to say: plain values, and what follows from them at once.

Nothing is searched here, and nothing decided.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from spotwatch.mail.model import MailClass
from spotwatch.mail.statements import SUBJECT, Row, Statement

_RECLAIM, _UNCLEAR = MailClass.RECLAIM, MailClass.UNCLEAR
# What is said for a time of day is no general talk.
_TIMED = re.compile(
    r"[0-9]{1,2}:[0-9]{2}|[0-9]\s?[ap]\.?m\b|\b(?:in|within) (?:[\w-]+ ){0,3}(?:hours?|minutes?)(?!')",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One own statement that says reclaim, cancel or correction."""

    name: str
    """The pattern's."""
    statement: Statement
    number: int
    """Of the statement among the own ones."""
    end: int
    """Where in the statement it has been said."""
    speaks: bool
    """It speaks of a reclaim itself, not only of an earlier mail."""

    @property
    def is_timed(self) -> bool:
        """Tell whether it states a time of day or a span."""
        return _TIMED.search(self.statement.text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """One statement that makes the mail another kind of mail."""

    name: str
    number: int
    paragraph: int
    is_everywhere: bool
    """It stands for the whole mail, wherever it is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What a mail says, as own and as quoted words, and which pattern was the first to say so."""

    own_text: str
    quoted_text: str
    statements: tuple[Statement, ...]
    """The own ones, the Subject's first."""
    rows: tuple[Row, ...]
    values: tuple[str, ...]
    """Labels with what stands behind them: no statements, but a time may be there."""
    own: Mapping[str, str]
    quoted: Mapping[str, str]
    reclaims: tuple[Said, ...]
    """Said as facts."""
    cancels: tuple[Said, ...]
    corrections: tuple[Said, ...]
    doubts: tuple[Doubt, ...]
    spared: tuple[str, ...]
    """Statements whose Droplets stay; a row counts with its head."""
    is_in_subject: bool
    """The Subject, or the one answered, speaks of a reclaim, of its end, or of Spot Droplets."""
    is_end_in_subject: bool
    """It speaks of the end itself, not only of Spot Droplets."""
    unknown: tuple[int, ...]
    """The numbers of own statements of which no pattern knows that a notice may begin so."""
    sender: str
    """The pattern that knows the sender; empty: none."""
    is_reply: bool
    is_cut: bool = False
    """It says more than is searched."""
    is_hedged: str = ""
    """The pattern of a cancel that is said with a condition or an exception; empty: none."""

    @property
    def speaks(self) -> bool:
        """Tell whether the own words speak of a reclaim at all."""
        return _RECLAIM in self.own or _UNCLEAR in self.own

    @property
    def quotes(self) -> str:
        """Return the pattern by which the quoted words speak of a reclaim; empty: they do not."""
        return self.quoted.get(_RECLAIM) or self.quoted.get(_UNCLEAR) or ""

    @property
    def answers(self) -> bool:
        """Tell whether somebody whom no pattern knows answers a mail that speaks of a reclaim."""
        return self.is_reply and not self.sender and bool(self.quotes)

    def is_unknown_before(self, said: Said) -> bool:
        """Tell whether something unknown stands before it, under a Subject that names Spot and no reclaim."""
        return not self.is_end_in_subject and any(number < said.number for number in self.unknown)

    def doubt_of(self, said: Said) -> str:
        """Return the pattern for which `said` is not believed; empty: nothing before or around it says so.

        What follows in other paragraphs is the foot of a mail: it may speak of tickets, teams and prices.
        """
        if self.is_unknown_before(said):
            return "something unknown before it"
        return next(
            (
                doubt.name
                for doubt in self.doubts
                if doubt.is_everywhere
                or doubt.number <= said.number
                or doubt.paragraph in (SUBJECT, said.statement.paragraph)
            ),
            "",
        )
