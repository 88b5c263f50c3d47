# SPDX-License-Identifier: Apache-2.0
"""What a person sees of a text: no invisible characters, one blank, one line a line.

It knows neither mail nor HTML. Costs are bounded for any text of at most `MAX_CHARACTERS`.
"""

from __future__ import annotations

import re
import unicodedata

MAX_CHARACTERS = 64 * 1024
"""Of a text that is looked at."""

# unicodedata.normalize sorts a run of combining marks by insertion: 64,000 of them take 3.2 s (Python
# 3.11.7). Unicode calls text with shorter runs "stream-safe" (UAX #15, section 13).
_LONGEST_RUN_OF_MARKS = 30

_LINE_ENDS = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_BLANKS = re.compile(r"[^\S\n]+")
_BLANKS_AT_ENDS = re.compile(r" ?\n ?")
_EMPTY_LINES = re.compile(r"\n{3,}")

# Cc: control; Cf: zero width, bidi, soft hyphen; Cs: half a pair, which no stream can encode.
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs"})
# Default_Ignorable_Code_Point beyond Cf (DerivedCoreProperties.txt, Unicode 14): a grapheme joiner, fillers
# of Hangul, vowels of Khmer that are not drawn, selectors of variants.
_IGNORABLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0").union(
    map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)))
)


def normalise(text: str) -> str:
    r"""Return `text` in NFKC, without what cannot be seen, one blank between words and `\n` between lines.

    Empty lines stay, one at a time: they end lists and paragraphs. More than 64 Ki characters are cut off.
    """
    text = _LINE_ENDS.sub("\n", text[:MAX_CHARACTERS]).replace("\t", " ")
    text = text.translate(dict.fromkeys(map(ord, _invisible(set(text)))))
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _with_short_runs(text))[:MAX_CHARACTERS]
    text = _BLANKS_AT_ENDS.sub("\n", _BLANKS.sub(" ", text))
    return _EMPTY_LINES.sub("\n\n", text).strip()


def _invisible(characters: set[str]) -> set[str]:
    # isprintable() is many times quicker than a category, and false for all of those categories.
    unseen = {
        c for c in characters if not c.isprintable() and unicodedata.category(c) in _INVISIBLE_CATEGORIES
    }
    return (unseen | (characters & _IGNORABLE)) - {"\n"}


def _with_short_runs(text: str) -> str:
    marks = {c for c in set(text) if unicodedata.combining(c)}
    if not marks:
        return text
    kept: list[str] = []
    run = 0
    for character in text:
        run = run + 1 if character in marks else 0
        if run <= _LONGEST_RUN_OF_MARKS:
            kept.append(character)
    return "".join(kept)
