# SPDX-License-Identifier: Apache-2.0
"""Which lines of a mail are its own, and which are another mail's, quoted or passed on.

It reads normalised text, and knows no HTML: there a quoted block arrives as lines with `> `.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_PASSED_ON = re.compile(
    r"^(?:begin forwarded message ?:|-{2,} ?forwarded (?:message|by)\b|-{2,} ?weitergeleitete nachricht)",
    re.IGNORECASE | re.MULTILINE,
)
_ORIGINAL = re.compile(
    r"^-{2,} ?(?:original message|ursprüngliche nachricht|message d'origine|mensaje original) ?-{2,}",
    re.IGNORECASE | re.MULTILINE,
)
# What Outlook puts above the other mail, in English, German, French and Spanish.
_HEADER_TABLE = re.compile(
    r"""^\*?(?:from|von|de)[ ]?:[^\n]*\n{1,2}+
        (?:\*?(?:sent|date|to|cc|reply-to|gesendet|datum|an|envoyé|à|enviado|para)[ ]?:[^\n]*\n{1,2}+){1,5}+
        \*?(?:subject|betreff|objet|asunto)[ ]?:
      | ^\*?from[ ]?:[^\n]*\n{1,2}+\*?subject[ ]?:[^\n]*\n{1,2}+\*?(?:date|to)[ ]?:""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
# What announces another's words without naming a mail: who said them, where they begin, a box around them.
_DAYS_AND_LABELS = (
    r"(?!(?:start|end|date|time|on|at|reclaim\w*|mon|tues|wednes|thurs|fri|satur|sun)(?:day)?\b)"
)
_WHO = r"[^\W\d_][^\W\d_.']*(?:\ [^\W\d_.']+){0,4}"
_WHO_SAID = re.compile(
    rf"""^(?!>)(?:
        (?:am|le|el|il|op|em|den)\b[^\n]{{1,200}}
        \b(?:schrieb|a\ écrit|escribió|ha\ scritto|schreef|escreveu|skrev)\b[^\n]{{0,200}}
      | [^\n.:!?]{{1,80}}\b(?:said|says|wrote|writes|replied|commented|asked|reported)\s?:?
      | [-=_*\#~]{{2,}}[ -]?[^\n]{{0,80}}
        \b(?:begin|start|report|reply|message|comment|complaint|excerpt|quote)\b[^\n]{{0,80}}
      | {_WHO},?\ ?[(<]?(?:[^\s@()<>]{{1,64}}@[\w.-]{{1,100}}[>)]?)
      | {_DAYS_AND_LABELS}{_WHO}(?:,\ ?|\ \()
        (?:[a-z]{{3,9}}\.?,?\ [^\n]{{0,30}}[0-9]{{1,2}}:[0-9]{{2}}[^\n]{{0,14}}
          |[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[^\n]{{0,20}})\)?
    )$""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
_WROTE = re.compile(r"\bwrote ?:(?=\n|\Z)")
_LONGEST_ATTRIBUTION = 250

# A bar in front quotes; a row of a table has more of them.
_QUOTED_LINES = re.compile(r"^(?:>[^\n]*|\|[^\n|]*)(?:\n|\Z)", re.MULTILINE)
_QUOTE_SIGNS = re.compile(r"^(?:(?:> ?)++|\| ?)", re.MULTILINE)
_INDENTED = re.compile(r"(?:(?<=\n\n)|\A)(?:(?: {4,}|\t)[^\n]+(?:\n|\Z))+", re.MULTILINE)
_INDENT = re.compile(r"^[ \t]+", re.MULTILINE)
_WORDS = re.compile(r"(?:[^\W\d_]{2,}[,.]?\s+){3}")
_BULLETS = re.compile("^[*•·‣◦▪\u2013-] (?=\\S)", re.MULTILINE)
_EMPTY_LINES = re.compile(r"\n{3,}")

_PREFIX = re.compile(r"(?:(re|aw|sv|antw|réf|ref)|(fwd?|wg|tr|rv|enc))(?:\[\d{1,3}\])? ?:", re.IGNORECASE)


class Split(NamedTuple):
    """A text by whose words they are."""

    own: str
    quoted: str
    is_passed_on: bool
    """Whether the other mail stands there as a person passes one on, not as an answer quotes one."""


def is_answer(subject: str) -> bool:
    """Tell whether the subject begins with `Re:` or what other languages have for it."""
    found = _PREFIX.match(subject)
    return found is not None and found[1] is not None


def is_passed_on(subject: str) -> bool:
    """Tell whether the subject begins with `Fwd:` or what other languages have for it."""
    found = _PREFIX.match(subject)
    return found is not None and found[2] is not None


def without_prefix(subject: str) -> str:
    """Return the subject without `Re:`, `Fwd:` and the like in front."""
    while (found := _PREFIX.match(subject)) is not None:
        subject = subject[found.end() :].lstrip()
    return subject


def split_quotes(text: str) -> Split:
    """Return the mail's own words and the quoted ones, without signs of quotes and lists.

    All that follows "Begin forwarded message:", "-----Original Message-----", a table of From, Sent, To and
    Subject, or "On ... wrote:" is another mail's; after the last only the `>` lines where there are such. So
    is what follows a line that only says who speaks, with an address or a date, or that a report begins.
    """
    text, unsigned = _mark_attributions(text)
    passed_on, original, table = (p.search(text) for p in (_PASSED_ON, _ORIGINAL, _HEADER_TABLE))
    said = _WHO_SAID.search(text)
    begins = [found.start() for found in (passed_on, original, table, said) if found]
    begin = min([*begins, unsigned])
    own, rest = text[:begin], text[begin:]
    quoted = "".join(_QUOTED_LINES.findall(own))
    own = _QUOTED_LINES.sub("", own) if quoted else own
    parts = (_tidy(_QUOTE_SIGNS.sub("", part)) for part in (quoted, rest))
    return Split(
        own=_tidy(own),
        quoted="\n\n".join(part for part in parts if part),
        is_passed_on=passed_on is not None or original is not None or table is not None,
    )


def mark_indented(text: str) -> str:
    """Return plain text as it came with `> ` before each line of paragraphs that are set in.

    Only those that are prose, and only beside others that are not set in: lists of Droplets are set in too.
    """
    text = text.replace("\r\n", "\n")
    if _INDENTED.search(text) is None or not re.search(r"^\S", text, re.MULTILINE):
        return text

    def mark(found: re.Match[str]) -> str:
        return _INDENT.sub("> ", found.group()) if _WORDS.search(found.group()) else found.group()

    return _INDENTED.sub(mark, text)


def _mark_attributions(text: str) -> tuple[str, int]:
    """Give each "On ... wrote:" above `>` lines their sign; return also where one begins that has no such."""
    kept: list[str] = []
    at = 0
    for found in _WROTE.finditer(text):
        begin = ("\n" + text).rfind("\nOn ", max(at, found.start() - _LONGEST_ATTRIBUTION), found.start() + 1)
        if begin < 0 or "\n\n" in text[begin : found.start()]:
            continue
        if not text.startswith((">", "\n>"), found.end() + 1):
            kept.append(text[at:])
            return "".join(kept), len("".join(kept)) - len(text) + begin
        kept += [text[at:begin], "> ", text[begin : found.end()].replace("\n", "\n> ")]
        at = found.end()
    kept.append(text[at:])
    marked = "".join(kept)
    return marked, len(marked)


def _tidy(text: str) -> str:
    return _EMPTY_LINES.sub("\n\n", _BULLETS.sub("", text)).strip()
