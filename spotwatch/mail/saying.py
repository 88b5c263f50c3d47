# SPDX-License-Identifier: Apache-2.0
"""What the statements of a mail say, by the patterns that they match, the own and the quoted ones.

What follows a colon after words that are not known to lead in the mail's own counts as quoted. It decides
nothing, and finds neither Droplets nor times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from spotwatch.mail.citing import split_citations
from spotwatch.mail.model import Mail, MailClass
from spotwatch.mail.normalising import MAX_CHARACTERS, normalise
from spotwatch.mail.patterns import (
    BULLETIN,
    DOUBTFUL,
    GENERAL,
    HANDED_ON,
    LABEL,
    LEAD,
    NO_FACT,
    SPARED,
    TOPIC,
    Pattern,
    Patterns,
)
from spotwatch.mail.quoting import is_answer, is_passed_on, without_prefix
from spotwatch.mail.regex_cost import UNLIMITED
from spotwatch.mail.statements import SUBJECT, Row, Statement, colons, lay_out
from spotwatch.mail.words import Doubt, Said, Words

_RECLAIM, _CANCEL, _CORRECTION = MailClass.RECLAIM, MailClass.CANCEL, MailClass.CORRECTION
_UNCLEAR = MailClass.UNCLEAR
_OF_RECLAIMS = frozenset({_RECLAIM, _CANCEL, _UNCLEAR, TOPIC})
_AS_A_WHOLE = frozenset({DOUBTFUL, HANDED_ON})
_OF_OTHER_THINGS = frozenset({MailClass.OTHER_NOTICE, BULLETIN, DOUBTFUL})
_KINDS = (*MailClass, TOPIC, BULLETIN, DOUBTFUL)

# No mail of DigitalOcean that we know has half as many. Lists of names have no words, and are no statements.
MAX_STATEMENTS = 100
"""How many statements are searched: a hostile mail has room for thousands, and keeps others waiting."""
_PROSE = re.compile(r"(?:^|\s)[^\W\d_]{2,}(?=[\s,.;:!?]|$)")


def read_words(mail: Mail, patterns: Patterns) -> Words:
    """Return what the words of a mail say. The subject of a reply or a forwarded mail is quoted."""
    subject = normalise(mail.subject)
    is_taken_over = is_answer(subject) or is_passed_on(subject)
    text, quoted = mail.text[:MAX_CHARACTERS], mail.quoted[:MAX_CHARACTERS]
    by_says = _by_says(patterns)
    head, body = split_citations(without_prefix(subject)), split_citations(text)
    of_subject = _Own(head.own, by_says, paragraph=SUBJECT)
    of_text = _Own(body.own, by_says)
    parts = (*(() if is_taken_over else of_subject.statements), *of_text.statements)
    found = _Finding(parts[:MAX_STATEMENTS], by_says)
    cited = [quoted, head.cited, body.cited, *of_text.handed_on]
    cited += [subject] if is_taken_over else of_subject.handed_on
    quoted_said = _first([s for part in cited for s in lay_out(part).statements], by_says)
    subject_said = _Finding(of_subject.statements, by_says)
    doubts = found.doubts()
    if is_taken_over:
        doubts = [*subject_said.doubts(), *doubts]
    return Words(
        own_text="\n\n".join(filter(None, ("" if is_taken_over else subject, text))),
        quoted_text=f"{subject if is_taken_over else ''}\n\n{quoted}",
        statements=tuple(part.own for part in parts[:MAX_STATEMENTS]),
        values=tuple(of_text.values()),
        rows=(*(() if is_taken_over else of_subject.rows), *of_text.rows),
        own=found.own,
        quoted=quoted_said,
        reclaims=tuple(found.reclaims),
        cancels=tuple(found.all_of(_CANCEL)),
        corrections=tuple(found.all_of(_CORRECTION)),
        doubts=tuple(doubts),
        spared=(*found.spared(), *_spared_rows(of_text.rows, by_says)),
        is_in_subject=any(says in _OF_RECLAIMS for says in subject_said.own),
        is_end_in_subject=any(says in _OF_RECLAIMS - {TOPIC} for says in subject_said.own),
        unknown=tuple(found.unknown()),
        sender=next(
            (p.name for p in patterns.ordered if p.where == "sender" and p.is_in(mail.sender[:UNLIMITED])), ""
        ),
        is_cut=len(parts) > MAX_STATEMENTS,
        is_hedged=found.hedged(),
        is_reply=not mail.is_forwarded and (is_taken_over or "in-reply-to" in mail.header_counts),
    )


_BySays = Mapping[str, Sequence[Pattern]]


def _by_says(patterns: Patterns) -> _BySays:
    found: dict[str, list[Pattern]] = {}
    for pattern in patterns.ordered:
        if pattern.where != "sender":
            found.setdefault(pattern.says, []).append(pattern)
    return found


def _match(kind: str, statement: Statement, by_says: _BySays) -> Pattern | None:
    where = "subject" if statement.paragraph == SUBJECT else "text"
    return next(
        (p for p in by_says.get(kind, ()) if p.where in ("any", where) and p.is_in(statement.text)), None
    )


def _first(statements: Sequence[Statement], by_says: _BySays) -> Mapping[str, str]:
    """Return what quoted statements say, and the first pattern of each kind."""
    said: dict[str, str] = {}
    searched = [s for s in statements if _PROSE.search(s.text)][:MAX_STATEMENTS]
    for kind in (_RECLAIM, _UNCLEAR):
        hit = next((p for s in searched if (p := _match(kind, s, by_says))), None)
        if hit is not None:
            said[kind] = hit.name
    return said


def _spared_rows(rows: Sequence[Row], by_says: _BySays) -> Iterator[str]:
    heads: dict[str, bool] = {}
    for row in rows:
        if row.head not in heads:
            head = Statement(text=row.head[:UNLIMITED], paragraph=0)
            heads[row.head] = bool(row.head) and _match(SPARED, head, by_says) is not None
        if heads[row.head]:
            yield row.text


class _Part(NamedTuple):
    """A statement, as far as it is the mail's own, and with what it hands on."""

    own: Statement
    whole: Statement


class _Own:
    """A text without what it hands on: what follows a colon whose lead is not known."""

    def __init__(self, text: str, by_says: _BySays, *, paragraph: int = 0) -> None:
        self._by_says = by_says
        self._known: dict[str, bool] = {}
        layout = lay_out(text, first_paragraph=paragraph)
        # Said twice it says no more.
        once: dict[tuple[str, tuple[str, ...]], Statement] = {}
        for statement in layout.statements:
            if _PROSE.search(statement.text):
                once.setdefault((statement.text, statement.leads), statement)
        prose = islice(once.values(), MAX_STATEMENTS + 1)
        self.statements = tuple(_Part(self._own_part(one), one) for one in prose)
        self.handed_on = [part.whole.text for part in self.statements if part.own.text != part.whole.text]
        self.rows = layout.rows

    def _own_part(self, statement: Statement) -> Statement:
        before = statement.leads[: len(statement.leads) - len(statement.line_leads)]
        if not all(self._is_known(lead) or self._is_label(lead) for lead in before):
            return replace(statement, text="")
        if not all(map(self._is_known, statement.line_leads)):
            return replace(statement, text="")
        for lead, end in colons(statement.text):
            if not self._is_known(lead):
                return replace(statement, text=statement.text[:end])
        return statement

    def values(self) -> Iterator[str]:
        """Yield each label with its value."""
        for part in self.statements:
            lead, _ = next(colons(part.whole.text), ("", 0))
            if lead and self._is_label(lead):
                yield part.whole.text

    def _is_label(self, lead: str) -> bool:
        words = Statement(text=lead[-UNLIMITED:], paragraph=0)
        return _match(LABEL, words, self._by_says) is not None

    def _is_known(self, lead: str) -> bool:
        if lead not in self._known:
            words = Statement(text=lead[-UNLIMITED:], paragraph=0)
            is_ours = any(_match(kind, words, self._by_says) for kind in (LEAD, *_OF_RECLAIMS, _CORRECTION))
            self._known[lead] = is_ours and not any(_match(k, words, self._by_says) for k in _AS_A_WHOLE)
        return self._known[lead]


class _Finding:
    """What own statements say."""

    def __init__(self, parts: Sequence[_Part], by_says: _BySays) -> None:
        self._parts = parts
        self._statements = [part.own for part in parts]
        self._whole = [part.whole for part in parts]
        self._by_says = by_says
        self.own: dict[str, str] = {}
        for kind in _KINDS:
            statements = self._whole if kind in _OF_OTHER_THINGS else self._statements
            hit = next((p for s in statements if (p := _match(kind, s, by_says))), None)
            if hit is not None and kind != _RECLAIM:
                self.own[kind] = hit.name
        facts = [one for one in self.all_of(_RECLAIM) if self._is_fact(one)]
        self.reclaims = [one for one in facts if one.statement.paragraph != SUBJECT]
        if not self.reclaims and not self._doubts_subject():
            self.reclaims = facts
        if facts and not self.reclaims:
            self.own.setdefault(_UNCLEAR, f"{facts[0].name} in its Subject only")
        if self.reclaims:
            self.own[_RECLAIM] = self.reclaims[0].name

    def all_of(self, kind: MailClass) -> Iterator[Said]:
        """Yield each statement that says it, once."""
        for number, statement in enumerate(self._statements):
            pattern = _match(kind, statement, self._by_says)
            found = None if pattern is None else pattern.regex.search(statement.text)
            if pattern is not None and found is not None:
                yield Said(
                    name=pattern.name,
                    statement=statement,
                    number=number,
                    end=found.end(),
                    speaks=_match(_UNCLEAR, statement, self._by_says) is not None
                    or _match(_RECLAIM, statement, self._by_says) is not None,
                )

    def _doubts_subject(self) -> bool:
        """Tell whether the text keeps its Subject from being the whole announcement."""
        text = [part for part in self._parts if part.own.paragraph != SUBJECT]
        return any(
            _match(SPARED, part.own, self._by_says)
            or (_match(NO_FACT, part.own, self._by_says) and self._speaks(part.own))
            or (part.own != part.whole and self._speaks(part.whole))
            or any(_match(kind, part.whole, self._by_says) for kind in _AS_A_WHOLE)
            for part in text
        )

    def _speaks(self, statement: Statement) -> bool:
        return any(_match(kind, statement, self._by_says) for kind in (_UNCLEAR, _RECLAIM, _CANCEL))

    def _is_fact(self, said: Said) -> bool:
        if _match(GENERAL, said.statement, self._by_says) and not said.is_timed:
            return False
        denied = _match(NO_FACT, said.statement, self._by_says)
        if denied is not None:
            self.own.setdefault(_UNCLEAR, f"{said.name}, and {denied.name}")
        return denied is None

    def hedged(self) -> str:
        """Return the pattern of a cancel that its `unless` takes out somewhere; empty: none."""
        return next(
            (
                pattern.name
                for pattern in self._by_says.get(_CANCEL, ())
                for statement in self._statements
                if pattern.regex.search(statement.text) and not pattern.is_in(statement.text)
            ),
            "",
        )

    def doubts(self) -> list[Doubt]:
        """Return the statements that make it another kind of mail."""
        return [
            Doubt(
                name=pattern.name,
                number=number,
                paragraph=statement.paragraph,
                is_everywhere=kind == HANDED_ON,
            )
            for number, statement in enumerate(self._whole)
            for kind in (HANDED_ON, DOUBTFUL)
            if (pattern := _match(kind, statement, self._by_says)) is not None
        ]

    def unknown(self) -> Iterator[int]:
        """Yield the numbers of statements of the text that neither lead in a notice nor speak of one."""
        for number, part in enumerate(self._parts):
            if part.whole.paragraph == SUBJECT:
                continue
            kinds = (*_OF_RECLAIMS, _CORRECTION, LEAD)
            leads = (lead for lead, _ in colons(part.whole.text))
            if any(_match(kind, part.whole, self._by_says) for kind in kinds) or any(
                _match(LABEL, Statement(text=lead[-UNLIMITED:], paragraph=0), self._by_says) for lead in leads
            ):
                continue
            yield number

    def spared(self) -> Iterator[str]:
        """Yield the statements whose Droplets stay."""
        for statement in self._statements:
            if _match(SPARED, statement, self._by_says):
                yield statement.text
