# SPDX-License-Identifier: Apache-2.0
"""Of which Droplets a mail tells that they are reclaimed: those named in that statement, or listed for it.

It does not know what the statements mean; whether a mail is believed, others decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain

from spotwatch.mail.droplets import Naming, Who
from spotwatch.mail.words import Said, Words

_MAX_TOLD = 12
"""How many statements are asked; a notice has one or two."""
# Who is named behind these is not the one that goes.
_ASIDE = re.compile(
    r"\b(?:instead of|rather than|except\w{0,4}|but not|unlike|other than|apart from|make room|in favou?r)\b"
    r"|, not\b",
    re.IGNORECASE,
)
_LINK = re.compile(r"https?://\S{1,200}")
_THAT_ONE = re.compile(
    r"^\W{0,3}(?:it|it's|this|(?:this|the|that) (?:spot )?(?:gpu )?(?:droplet|instance|machine))\b",
    re.IGNORECASE,
)


class Telling:
    """Whom each reclaim of a mail is told of."""

    def __init__(self, words: Words, naming: Naming) -> None:
        self._words = words
        self._naming = naming
        self._named = [naming.of(statement.text) for statement in words.statements]
        self._spared = _union(naming.of(text).ours for text in words.spared)
        self._rows = [(row, naming.of(row.text)) for row in words.rows]
        listed = (
            _union(who.ours for _, who in self._rows)
            | naming.of("\n".join(_LINK.findall(words.own_text))).ours
        )
        self._open = (listed | _union(who.ours for who in self._named)) - self._spared
        self._told = [(said, self._of(said) - self._spared) for said in words.reclaims[:_MAX_TOLD]]

    def of(self, droplet_id: int) -> tuple[Said, ...]:
        """Return what says that this Droplet is reclaimed."""
        return tuple(said for said, ids in self._told if droplet_id in ids)

    def to_anybody(self) -> tuple[Said, ...]:
        """Return what says that one of ours is reclaimed."""
        return tuple(said for said, ids in self._told if ids)

    def rows_of(self, droplet_id: int) -> tuple[str, ...]:
        """Return the rows that name it."""
        return tuple(row.text for row, who in self._rows if droplet_id in who.ours)

    def with_rows(self) -> Sequence[int]:
        """Return those of ours that are told of and have rows."""
        told = _union(ids for _, ids in self._told)
        return sorted(told & _union(who.ours for _, who in self._rows))

    def rows_of_nobody(self) -> tuple[str, ...]:
        """Return the rows that name no Droplet: labels, and heads of tables."""
        return tuple(row.text for row, who in self._rows if not who.ours and not who.others)

    def _of(self, said: Said) -> frozenset[int]:
        text = said.statement.text
        who = self._naming.of(text[: said.end])
        if not who.ours and not who.others:
            aside = _ASIDE.search(text, said.end)
            who = self._naming.of(text if aside is None else text[: aside.start()])
            if aside is not None and not who.others and self._naming.of(text[aside.start() :]).ours:
                return who.ours
        if who.ours or who.others:
            return who.ours
        listed = [self._naming.of(row) for row in said.statement.rows]
        if any(one.ours or one.others for one in listed):
            return _union(one.ours for one in listed)
        before = self._before(said.number) if _THAT_ONE.match(text) else None
        return self._open if before is None else before.ours

    def _before(self, number: int) -> Who | None:
        """Return whom the nearest statement before names; None: nobody is named before."""
        return next((who for who in reversed(self._named[:number]) if who.ours or who.others), None)


def _union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset(chain.from_iterable(sets))
