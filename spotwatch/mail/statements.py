# SPDX-License-Identifier: Apache-2.0
"""A mail's own text as statements, one clause each, and the rows of its lists, each with its head.

What follows a colon is told by whatever stands before it; whether that may speak for the mail, others decide.
It knows no words of reclaims and no Droplets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from spotwatch.mail.regex_cost import UNLIMITED

SUBJECT = -1
"""The paragraph of what stands in the Subject."""

_ADDRESS = re.compile(r"\bhttps?://\S+", re.IGNORECASE)
# A word in small letters goes on: "2 p.m. on Sunday", or after a name with a full stop in it.
# Each clause is a statement of its own, so that what is said of the disk is not said of its Droplet.
_END = re.compile(
    r"(?<=[.!?])[\"')\]]*\s(?![a-z]++[\s,])|;\s"
    r"|,\s(?:and|so|please)\s(?=(?:all|its(?! time)|your|the|any|you|we|please|data|billing|save|copy)\b)"
)
_COLON = re.compile(r"(?<=[\w)\]\"']):(?=\s|\Z)")
_VERB = re.compile(
    r"\b(?:is|are|was|were|be|been|has|have|had|will|would|may|might|can|could|must|shall|should|do|does|did"
    r"|keep|keeps|goes|go|runs|stays)\b",
    re.IGNORECASE,
)
_LABEL = re.compile(r"[\w(][\w ()/#'-]{0,40}\s?[:|](?=\s)")
_NAME = re.compile(r"[^\w/]{0,4}(?:\w[\w.-]*[0-9-][\w.-]*\w\b|\w[\w.-]*\W*\Z|[0-9]{6,16}\b)")
_LONGEST_ROW = 300
# A statement too long is looked at in pieces that overlap, so that no pattern's words are torn apart.
_OVERLAP = UNLIMITED // 2
# Sentences shorter than this are put together: a mail of thousands would cost too many searches.
_SHORT = 24
_MOST_LEADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One clause of the mail's own words, at most as long as a pattern may search."""

    text: str
    paragraph: int
    leads: tuple[str, ...] = ()
    """What stands before each colon in front of it: `Commit message`, `The reporter says`."""
    line_leads: tuple[str, ...] = ()
    """Those of them in the same line, or in the same run of lines."""
    rows: tuple[str, ...] = ()
    """Those under it, when it heads a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line that is no sentence: a name in a list, a row of a table, a label and its value."""

    text: str
    head: str
    """The sentence with a colon that it stands under; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A text by what is said, and what is listed."""

    statements: tuple[Statement, ...]
    rows: tuple[Row, ...]


def lay_out(text: str, *, first_paragraph: int = 0) -> Layout:
    """Return the statements and rows of an own text, in their order.

    A lead holds for the rest of its paragraph, and to the end of the text where its line ends with the colon.

    Args:
        text: normalised, without citations.
        first_paragraph: its number; `SUBJECT` for a Subject.
    """
    statements: list[Statement] = []
    rows: list[Row] = []
    head: int | None = None
    of_text: tuple[str, ...] = ()
    for number, paragraph in enumerate(text.split("\n\n"), first_paragraph):
        leads = of_text
        for piece, is_row in _pieces_of(paragraph):
            if is_row:
                rows.append(Row(text=piece, head="" if head is None else statements[head].text))
                if head is not None:
                    statements[head] = replace(statements[head], rows=(*statements[head].rows, piece))
            said, leads = _clauses(piece, number, of_text if is_row else leads)
            statements += said
            if not is_row:
                head = len(statements) - 1 if said and piece.endswith(":") else None
                of_text = leads if piece.endswith(":") else of_text
    return Layout(statements=tuple(statements), rows=tuple(rows))


def leads_of(statement: Statement, at: int) -> tuple[str, ...]:
    """Return what stands before each colon that the words at `at` of a statement follow."""
    return (*statement.leads, *(lead for lead, end in colons(statement.text) if lead and end <= at))


def colons(text: str) -> Iterator[tuple[str, int]]:
    """Yield what stands before each colon of a statement, and where the colon ends."""
    begin = 0
    for colon in _COLON.finditer(text):
        yield text[begin : colon.start()].strip(), colon.end()
        begin = colon.end()


def _pieces_of(paragraph: str) -> Iterator[tuple[str, bool]]:
    """Yield the prose and the rows of a paragraph; lines that were broken for their length are one."""
    prose: list[str] = []
    for line in paragraph.split("\n"):
        bare = " ".join(_ADDRESS.sub(" ", line).split())
        if not bare:
            continue
        is_row = _is_row(bare)
        if not is_row:
            prose.append(bare)
        if prose and (is_row or bare.endswith(":")):
            yield " ".join(prose), False
            prose = []
        if is_row:
            yield bare, True
    if prose:
        yield " ".join(prose), False


def _is_row(line: str) -> bool:
    if len(line) > _LONGEST_ROW or line.endswith((":", "!", "?")) or _VERB.search(line):
        return False
    return _LABEL.match(line) is not None or (_NAME.match(line) is not None and not line.endswith(","))


def _clauses(piece: str, paragraph: int, leads: tuple[str, ...]) -> tuple[list[Statement], tuple[str, ...]]:
    """Return the statements of a piece, and the leads that hold for what follows it."""
    found: list[Statement] = []
    before = leads
    waiting = ""
    clauses = _END.split(piece)
    for number, clause in enumerate(clauses, 1):
        waiting = f"{waiting} {clause}" if waiting else clause
        if len(waiting) >= _SHORT or number == len(clauses):
            whole = Statement(text=waiting, paragraph=paragraph, leads=leads, line_leads=leads[len(before) :])
            found += (replace(whole, text=part) for part in _parts(waiting))
            leads = leads_of(whole, len(waiting))[:_MOST_LEADS]
            waiting = ""
    return found, leads


def _parts(text: str) -> Iterator[str]:
    for start in range(0, max(len(text) - _OVERLAP, 1), _OVERLAP):
        yield text[start : start + UNLIMITED]
