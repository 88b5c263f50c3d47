# SPDX-License-Identifier: Apache-2.0
"""Which words of a text only cite: what stands in quotation marks, or after "a team called".

Strangers choose names of teams, images and comments, and DigitalOcean signs the mails that tell of them. It
reads normalised text, and does not know what the words mean.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_APOSTROPHES = str.maketrans("\u2018\u2019\u02bc\u2032`\u00b4", "''''''")

# One word in quotation marks is a name, and may be a Droplet's: it stays. No expression runs over its own
# opening mark, so that a text of nothing but marks is searched once.
_MARKED = re.compile(
    r"\"[^\" ]{0,80} [^\"]{1,400}\""
    r"|\u201c[^\u201c\u201d ]{0,80} [^\u201c\u201d]{1,400}\u201d"
    r"|\u201e[^\u201c\u201d\u201e ]{0,80} [^\u201c\u201d\u201e]{1,400}[\u201c\u201d]"
    r"|\u00ab[^\u00ab\u00bb]{1,400}\u00bb"
    r"|(?<![\w'])'[^' ]{0,80} [^']{1,400}'(?![\w'])"
)
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

    Whoever names his team with a full stop or a quotation mark in it goes on speaking, so that all that
    follows "a team called" in its paragraph is cited.
    """
    own: list[str] = []
    cited: list[str] = []
    for paragraph in text.translate(_APOSTROPHES).split("\n\n"):
        said = " ".join(paragraph.split())
        called = _CALLED.search(said)
        if called is not None:
            cited.append(said[called.end() :])
            said = said[: called.end()]
        cited += (found.group()[1:-1] for found in _MARKED.finditer(said))
        own.append(_MARKED.sub('""', said))
    return Cited("\n\n".join(own), "\n\n".join(cited))
