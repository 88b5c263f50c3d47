# SPDX-License-Identifier: Apache-2.0
"""Which words of a text only cite: what stands in quotation marks, or after "a team called".

Strangers choose names of teams, images and comments, and DigitalOcean signs the mails that tell of them. It
reads normalised text, and does not know what the words mean.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_APOSTROPHES = str.maketrans("\u2018\u2019\u02bc\u2032`\u00b4", "''''''")

_MARK = re.compile(
    r"``|''|,,|\u2018\u2018|\u2019\u2019|[\"'`\u2018-\u201f\u00ab\u00bb\u2039\u203a\u275b-\u275e\u300a-\u300f\u301d-\u301f]"
)
_CLOSING = {
    '"': {'"'},
    "''": {"''"},
    "``": {"''", "``", '"'},
    ",,": {"''", "``", '"', "\u201c", "\u201d", "\u2018\u2018", "\u2019\u2019"},
    "\u2018\u2018": {"\u2019\u2019", "''"},
    "\u2019\u2019": {"\u2019\u2019"},
    "'": {"'", "\u2019"},
    "`": {"`", "'", "\u2019"},
    "\u2018": {"\u2019", "'"},
    "\u2019": {"\u2019"},
    "\u201a": {"\u2018", "\u2019", "'"},
    "\u201b": {"\u2019", "'"},
    "\u201c": {"\u201d", '"'},
    "\u201d": {"\u201d"},
    "\u201e": {"\u201c", "\u201d", '"'},
    "\u201f": {"\u201d"},
    "\u00ab": {"\u00bb"},
    "\u00bb": {"\u00ab", "\u00bb"},
    "\u2039": {"\u203a"},
    "\u203a": {"\u2039", "\u203a"},
    "\u275b": {"\u275c"},
    "\u275d": {"\u275e"},
    "\u300a": {"\u300b"},
    "\u300c": {"\u300d"},
    "\u300e": {"\u300f"},
    "\u301d": {"\u301e", "\u301f"},
}
# They stand for an apostrophe too: alone they open nothing, and close nothing within a word.
_ALSO_APOSTROPHES = frozenset("'`\u2018\u2019\u201b")
_AROUND_NAMES = frozenset("\"'`\u2018\u201a\u201c\u201e")
_CALLED = re.compile(
    r"\b(?:called|named|titled|entitled)\s?:"
    r"|\b(?:teams?|projects?|images?|snapshots?|volumes?|organi[sz]ations?|questions?|topics?|threads?|tickets?"
    r"|databases?|clusters?|apps?|spaces?|buckets?|domains?|comments?|posts?|workspaces?|groups?|users?|alerts?|checks?"
    r"|files?|keys?|rules?|functions?|records?|links?|policy|policies)"
    r" (?:is |was )?(?:called|named|titled|entitled) ",
    re.IGNORECASE,
)


class Cited(NamedTuple):
    """A text by who speaks."""

    own: str
    """Paragraph by paragraph, with plain apostrophes."""
    cited: str


def split_citations(text: str) -> Cited:
    """Return the words that speak for the mail, and those that are cited in it.

    A quotation may run over paragraphs. One that nobody closes goes on to the end of its paragraph, and to
    the end of the text where it begins a paragraph or follows a colon. One word in quotation marks is a
    name, and may be a Droplet's: it stays. Whoever names his team with a full stop or a quotation mark in it
    goes on speaking, so that all that follows "a team called" in its paragraph is cited.
    """
    text, cited = _without_quotations(text)
    own: list[str] = []
    for paragraph in text.translate(_APOSTROPHES).split("\n\n"):
        called = _CALLED.search(paragraph)
        if called is not None:
            cited.append(paragraph[called.end() :])
        own.append(paragraph if called is None else paragraph[: called.end()])
    return Cited("\n\n".join(own), "\n\n".join(cited))


def _without_quotations(text: str) -> tuple[str, list[str]]:
    marks = list(_MARK.finditer(text))
    never_closed: set[str] = set()
    own, cited = list[str](), list[str]()
    at, number = 0, 0
    while number < len(marks):
        opening = marks[number]
        number += 1
        if opening.start() < at or not _opens(text, opening):
            continue
        sign = opening.group()
        closing = None if sign in never_closed else _closing(text, marks, number)
        if closing is None:
            # Looked for to the end once for each sign: else a text of nothing but marks took minutes.
            never_closed.add(sign)
            end = _end_of_unclosed(text, opening)
            inner, after = text[opening.end() : end], end
        else:
            number = closing + 1
            inner, after = text[opening.end() : marks[closing].start()], marks[closing].end()
        is_name = closing is not None and sign in _AROUND_NAMES and not re.search(r"\s", inner)
        if inner and not is_name:
            own += [text[at : opening.start()], '""']
            cited.append(inner)
            at = after
    own.append(text[at:])
    return "".join(own), cited


def _opens(text: str, mark: re.Match[str]) -> bool:
    before, after = text[max(0, mark.start() - 1) : mark.start()], text[mark.end() : mark.end() + 1]
    is_in_word = before.isalnum() or before in ("_", ")")
    return mark.group() in _CLOSING and bool(after.strip()) and not is_in_word


def _closing(text: str, marks: Sequence[re.Match[str]], number: int) -> int | None:
    """Return the number of the mark that closes the one before `number`; None: none does."""
    opening = marks[number - 1].group()
    depth = 1
    end = _end_of_paragraph(text, marks[number - 1].end()) if opening in _ALSO_APOSTROPHES else len(text)
    for index in range(number, len(marks)):
        mark = marks[index]
        if mark.start() >= end:
            return None
        is_another = mark.group() == opening and opening not in _CLOSING[opening]
        if is_another:
            depth += 1
        elif mark.group() in _CLOSING[opening] and _ends(text, mark):
            depth -= 1
            if depth == 0:
                return index
    return None


def _ends(text: str, mark: re.Match[str]) -> bool:
    if mark.group() in _ALSO_APOSTROPHES:
        is_in_word = text[mark.end() : mark.end() + 1].isalnum()
        return not is_in_word and not text[mark.start() - 1].isspace()
    return True


def _end_of_unclosed(text: str, mark: re.Match[str]) -> int:
    before = text[max(0, mark.start() - 4) : mark.start()].rstrip(" ")
    begins = mark.start() == 0 or before.endswith(("\n\n", ":", ":\n"))
    if mark.group() in _ALSO_APOSTROPHES:
        return len(text) if begins and not before.endswith(":") else mark.end()
    return len(text) if begins else _end_of_paragraph(text, mark.end())


def _end_of_paragraph(text: str, at: int) -> int:
    end = text.find("\n\n", at)
    return len(text) if end < 0 else end
