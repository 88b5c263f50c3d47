# SPDX-License-Identifier: Apache-2.0
"""What a mail says: its class, the Droplets that it names, and when they go.

It does not ask who wrote it, and decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime

from spotwatch.mail.classifying import Around, classify
from spotwatch.mail.deeds import is_of_another_deed
from spotwatch.mail.droplets import Named, Naming, find, has_name_like
from spotwatch.mail.model import Droplet, Mail, MailClass, Mention, Reading
from spotwatch.mail.patterns import Patterns
from spotwatch.mail.saying import read_words
from spotwatch.mail.telling import Telling
from spotwatch.mail.times import MAX_CHARACTERS, When, when, zone_of_all
from spotwatch.mail.words import Said, Words

_ALL_OF_THEM = re.compile(r"\b(?:all(?! other)|following|below|listed|these|those|affected)\b", re.IGNORECASE)
_WITH_TIME = frozenset({MailClass.RECLAIM, MailClass.CORRECTION, MailClass.UNCLEAR})
_TIME = re.compile(r"[0-9]:[0-9]{2}|[0-9]\s?[ap]\.?m\b|\b(?:hours?|minutes?)\b", re.IGNORECASE)


def understand(
    mail: Mail, *, droplets: Sequence[Droplet], patterns: Patterns, received_at: datetime
) -> Reading:
    """Return what a mail says of Droplets.

    Whom and when are taken from the mail's own words; from quoted ones only where the own name nobody.

    Args:
        mail: as read, every part within its limit.
        droplets: those that it may be about.
        patterns: what words mean.
        received_at: aware.
    """
    words = read_words(mail, patterns)
    own = find(words.own_text, droplets, common_words=patterns.common_words)
    quoted = find(words.quoted_text, droplets, common_words=patterns.common_words)
    named = [mention.droplet for mention in own.mentions]
    telling = Telling(words, Naming(named, common_words=patterns.common_words))
    timing = _Timing(words, telling, signed_at=mail.date, received_at=received_at)
    stated = timing.of_all()
    mentions = own.mentions or (() if own.others else quoted.mentions)
    names_others = not mentions and (own.others or (quoted.others and not words.speaks))
    taking_back = tuple(one.statement.text for one in (*words.cancels, *words.corrections))
    mail_class, why = classify(
        words,
        Around(
            names_ours=bool(own.mentions),
            quotes_ours=bool(quoted.mentions),
            names_others=names_others,
            is_taken_back_for_all=_is_for_all(taking_back, own, patterns.common_words),
            states_time=stated.is_stated,
            states_far=stated.is_far,
            told=telling.to_anybody() if own.mentions else None,
        ),
    )
    if not own.mentions and not own.others and not stated.is_stated and mail_class is MailClass.UNCLEAR:
        stated = when(words.quoted_text, signed_at=mail.date, received_at=received_at)
    if own.mentions and mail_class is MailClass.RECLAIM:
        mentions = tuple(_told(mention, telling, timing) for mention in mentions)
    has_time = mail_class in _WITH_TIME
    return Reading(
        mail_class=mail_class,
        class_why=why,
        is_in_subject=words.is_in_subject,
        mentions=mentions,
        names_others=names_others,
        at=stated.at if has_time else None,
        is_at_stated=has_time and stated.is_stated,
        at_why=stated.why if has_time else "",
    )


def _told(mention: Mention, telling: Telling, timing: _Timing) -> Mention:
    told = telling.of(mention.droplet.droplet_id)
    own = timing.of_row(mention.droplet.droplet_id) if told else None
    return replace(mention, is_told=bool(told), at=None if own is None else own.at)


class _Timing:
    """When the Droplets of a mail go, by what is nearest to the deed: a row, the statement, the rest."""

    def __init__(
        self, words: Words, telling: Telling, *, signed_at: datetime | None, received_at: datetime
    ) -> None:
        self._telling = telling
        self._signed_at, self._received_at = signed_at, received_at
        told = telling.to_anybody() or words.reclaims
        self._is_correction = bool(words.corrections)
        rows = [row.text for row in words.rows]
        self._first = _joined((*told, *words.corrections), (*telling.rows_of_nobody(), *words.values))
        self._rest = "\n".join([s.text for s in words.statements if not is_of_another_deed(s.text)] + rows)[
            :MAX_CHARACTERS
        ]
        self._zone = zone_of_all(words.own_text[:MAX_CHARACTERS])
        self._of_rows: dict[int, When | None] = {}

    def of_all(self) -> When:
        """Return when the first of them goes."""
        rows = [own for one in self._telling.with_rows() if (own := self.of_row(one)) is not None]
        if rows:
            return min(rows, key=lambda one: one.at)
        return self._when(self._rest, self._first)

    def of_row(self, droplet_id: int) -> When | None:
        """Return when one goes by a row of its own; None: none says so."""
        if droplet_id not in self._of_rows:
            rows = [row for row in self._telling.rows_of(droplet_id) if _TIME.search(row)]
            found = [self._when("", f"reclaim | {row}") for row in rows[:3]]
            stated = (one for one in found if one.is_stated)
            self._of_rows[droplet_id] = min(stated, key=lambda one: one.at, default=None)
        return self._of_rows[droplet_id]

    def _when(self, text: str, first: str) -> When:
        return when(
            text,
            first=first,
            zone=self._zone,
            signed_at=self._signed_at,
            received_at=self._received_at,
            is_correction=self._is_correction,
        )


def _joined(said: Sequence[Said], rows: Sequence[str]) -> str:
    statements = dict.fromkeys(one.statement.text for one in said)
    return "\n".join([*rows, *statements])[:MAX_CHARACTERS]


def _is_for_all(statements: Sequence[str], named: Named, common_words: AbstractSet[str]) -> bool:
    """Tell whether `statements` are about all Droplets that their mail names, not some of them, or others."""
    said = "\n".join(statements)
    if _ALL_OF_THEM.search(said):
        return True
    ours = [mention.droplet for mention in named.mentions]
    if ours and len(find(said, ours, common_words=common_words).mentions) == len(ours):
        return True
    return len(ours) + named.others <= 1 and not has_name_like(said, common_words=common_words)
