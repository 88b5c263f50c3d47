# SPDX-License-Identifier: Apache-2.0
"""What kind of mail it is, by the patterns that its own words match.

Quoted words never decide what the own words say. In doubt a mail is unclear, which flushes: never a cancel,
never a stop. It finds neither Droplets nor times; others say whether there are any.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spotwatch.mail.citing import split_citations
from spotwatch.mail.model import Mail, MailClass
from spotwatch.mail.normalising import MAX_CHARACTERS, normalise
from spotwatch.mail.patterns import BULLETIN, DOUBTFUL, GENERAL, TOPIC, Pattern, Patterns, Where
from spotwatch.mail.quoting import is_answer, is_passed_on
from spotwatch.mail.regex_cost import UNLIMITED

_RECLAIM, _CANCEL, _CORRECTION = MailClass.RECLAIM, MailClass.CANCEL, MailClass.CORRECTION
_TAKING_BACK = frozenset({_CANCEL, _CORRECTION})
_UNCLEAR, _OTHER_NOTICE, _OTHER = MailClass.UNCLEAR, MailClass.OTHER_NOTICE, MailClass.OTHER
_OF_RECLAIMS = frozenset({_RECLAIM, _CANCEL, _CORRECTION, _UNCLEAR, TOPIC})

_ADDRESS = re.compile(r"\bhttps?://\S+", re.IGNORECASE)
_END_OF_SENTENCE = re.compile(r"(?<=[.!?])[\"')\]]*\s")
# A statement too long is looked at in pieces that overlap, so that no pattern's words are torn apart.
_OVERLAP = UNLIMITED // 2
# No mail of DigitalOcean that we know has half as many. Lists of names have no words, and are no statements.
MAX_STATEMENTS = 100
"""How many statements are searched: a hostile mail has room for thousands, and keeps others waiting."""
_PROSE = re.compile(r"(?:^|\s)[^\W\d_]{2,}(?=[\s,.;:!?]|$)")
# What is said for a time of day is no general talk.
_TIMED = re.compile(
    r"[0-9]{1,2}:[0-9]{2}|[0-9]\s?[ap]\.?m\b|\b(?:in|within) (?:[\w-]+ ){0,3}(?:hours?|minutes?)(?!')",
    re.IGNORECASE,
)
# Sentences shorter than this are put together: a mail of thousands would cost too many searches.
_SHORT = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What a mail says, as own and as quoted words, and which pattern was the first to say so."""

    own_text: str
    quoted_text: str
    own: Mapping[str, str]
    quoted: Mapping[str, str]
    taking_back: tuple[str, ...]
    """The own statements that say cancel or correction."""
    change: str
    """The first pattern that says correction of the text: `Update:` in a subject may announce anything."""
    is_in_subject: bool
    """The Subject, or the one answered, speaks of a reclaim, of its end, or of Spot Droplets."""
    sender: str
    """The pattern that knows the sender; empty: none."""
    is_reply: bool
    is_cut: bool = False
    """It says more than is searched."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What else was found in a mail."""

    names_ours: bool
    """In its own words."""
    quotes_ours: bool
    """In quoted words."""
    names_others: bool
    """And none of ours."""
    is_taken_back_for_all: bool
    """A cancel or correction holds for every Droplet that the mail names."""
    states_time: bool
    states_far: bool = False
    """No such time, but one that is days ahead."""


class _Hit(NamedTuple):
    pattern: Pattern
    statement: str


def read_words(mail: Mail, patterns: Patterns) -> Words:
    """Return what the words of a mail say. The subject of a reply or a forwarded mail is quoted."""
    subject = normalise(mail.subject)
    is_taken_over = is_answer(subject) or is_passed_on(subject)
    text, quoted = mail.text[:MAX_CHARACTERS], mail.quoted[:MAX_CHARACTERS]
    own_subject, quoted_subject = ("", subject) if is_taken_over else (subject, "")
    head, body = split_citations(own_subject), split_citations(text)
    statements = _statements_of(head.own, body.own)
    hits = _hits(statements, patterns)
    cited = "\n\n".join(filter(None, (quoted, head.cited, body.cited)))
    of_subject = _hits(_statements_of(split_citations(subject).own, ""), patterns)
    return Words(
        own_text=f"{own_subject}\n\n{text}",
        quoted_text=f"{quoted_subject}\n\n{quoted}",
        own=_first(hits),
        quoted=_first(_hits(_statements_of(quoted_subject, cited), patterns)),
        taking_back=tuple(dict.fromkeys(hit.statement for hit in hits if hit.pattern.says in _TAKING_BACK)),
        change=next(
            (
                hit.pattern.name
                for hit in hits
                if hit.pattern.says == _CORRECTION and hit.pattern.where != "subject"
            ),
            "",
        ),
        is_in_subject=any(hit.pattern.says in _OF_RECLAIMS for hit in of_subject),
        sender=next(
            (p.name for p in patterns.ordered if p.where == "sender" and p.is_in(mail.sender[:UNLIMITED])), ""
        ),
        is_cut=len(statements["any"]) > MAX_STATEMENTS,
        is_reply=not mail.is_forwarded and (is_taken_over or "in-reply-to" in mail.header_counts),
    )


def classify(words: Words, around: Around) -> tuple[MailClass, str]:
    """Return the class of a mail, and which patterns or what else decided, for people."""
    own = words.own
    if words.is_cut and words.speaks:
        return _UNCLEAR, "it says more than is searched, and speaks of a reclaim"
    found = (_not_believed(own, around) or _back(words, around)) if words.speaks else None
    if found is not None:
        return found
    if _RECLAIM in own:
        return _reclaim(own, around)
    if _UNCLEAR in own and not words.answers and (around.names_ours or not _other(own)):
        return _UNCLEAR, f"no more than {own[_UNCLEAR]}"
    return _quoting(words, around) or _else(words, around)


def _not_believed(own: Mapping[str, str], around: Around) -> tuple[MailClass, str] | None:
    """Return unclear, where words of reclaims stand in a mail that may carry a stranger's."""
    said = own.get(_RECLAIM) or own.get(_CANCEL) or own.get(_CORRECTION)
    is_news = BULLETIN in own and not around.names_ours and not around.states_time
    if not said or DOUBTFUL not in own or is_news:
        return None
    return _UNCLEAR, f"{said}, but also {own[DOUBTFUL]}, a kind of mail that may carry anybody's words"


def _back(words: Words, around: Around) -> tuple[MailClass, str] | None:
    """Return what is taken back; None: nothing is."""
    own = words.own
    if _CANCEL in own:
        against = own.get(_RECLAIM) or words.change
        if against:
            return _UNCLEAR, f"it says both {own[_CANCEL]} and {against}"
        return _taken_back(_CANCEL, own, around)
    if _CORRECTION in own and around.states_time:
        return _taken_back(_CORRECTION, own, around)
    return None


def _other(own: Mapping[str, str]) -> str:
    """Return the pattern that knows the mail as another kind; empty: none."""
    return own.get(_OTHER_NOTICE) or own.get(BULLETIN) or own.get(DOUBTFUL) or ""


def _reclaim(own: Mapping[str, str], around: Around) -> tuple[MailClass, str]:
    said, other = own[_RECLAIM], _other(own)
    if other and _UNCLEAR not in own:
        return _OTHER_NOTICE, f"{other}, in spite of {said}"
    if BULLETIN in own and not around.names_ours and not around.states_time:
        return _OTHER_NOTICE, f"{other}; {said} names no Droplet and no time"
    doubt = _doubt(own, around)
    return (_UNCLEAR, f"{said}, but {doubt}") if doubt else _whose(_RECLAIM, said, around)


def _doubt(own: Mapping[str, str], around: Around) -> str:
    """Return why words that say reclaim may mean something else; empty: they do not."""
    if _UNCLEAR not in own and TOPIC not in own:
        return "it does not speak of Spot"
    if _other(own) and not around.names_ours:
        return f"it also says {_other(own)}"
    # A mail of a new Droplet tells how Spot works, in words that no list of patterns holds all.
    if _OTHER_NOTICE in own and not around.states_time:
        return f"it also says {own[_OTHER_NOTICE]}, and no time"
    return "it states a time that is days ahead, and no other" if around.states_far else ""


def _taken_back(mail_class: MailClass, own: Mapping[str, str], around: Around) -> tuple[MailClass, str]:
    why = own[mail_class]
    if _other(own) and not around.names_ours:
        return _UNCLEAR, f"it says both {why} and {_other(own)}"
    if not around.is_taken_back_for_all:
        return _UNCLEAR, f"{why}, but perhaps not of every Droplet that it names"
    return _whose(mail_class, why, around)


def _whose(mail_class: MailClass, why: str, around: Around) -> tuple[MailClass, str]:
    """Return the class, unless the Droplet is only in what is quoted: then it may be about another one."""
    if around.quotes_ours and not around.names_ours:
        return _UNCLEAR, f"{why}, but our Droplet is named in quoted words only"
    return mail_class, why


def _quoting(words: Words, around: Around) -> tuple[MailClass, str] | None:
    """Return the class of a mail whose own words say nothing of a reclaim, when it quotes one."""
    quoted = words.quotes
    if words.answers:
        return _OTHER, f"a reply that quotes {quoted}"
    if not quoted or _UNCLEAR in words.own:
        return None
    if around.names_ours or around.quotes_ours or not around.names_others:
        return _UNCLEAR, f"{quoted}, in quoted words only"
    return _OTHER, f"it quotes {quoted} about other Droplets"


def _else(words: Words, around: Around) -> tuple[MailClass, str]:
    if _other(words.own):
        return _OTHER_NOTICE, _other(words.own)
    if around.names_ours and not (words.is_reply and not words.sender):
        return _UNCLEAR, "it names our Droplet, and no pattern knows what it says"
    if words.sender:
        return _OTHER_NOTICE, words.sender
    return _OTHER, "no pattern"


def _statements_of(subject: str, text: str) -> Mapping[Where, tuple[str, ...]]:
    head = tuple(_statements(subject))
    body = tuple(filter(_PROSE.search, dict.fromkeys(_statements(text))))
    return {"any": head + body, "subject": head, "text": body, "sender": ()}


def _hits(statements: Mapping[Where, tuple[str, ...]], patterns: Patterns) -> list[_Hit]:
    """Return the first hit of each kind, and every one that takes something back."""
    hits: list[_Hit] = []
    found: set[str] = set()
    at_large = [pattern for pattern in patterns.ordered if pattern.says == GENERAL]

    def is_general(statement: str) -> bool:
        return any(one.is_in(statement) for one in at_large) and not _TIMED.search(statement)

    for pattern in patterns.ordered:
        if pattern.says in found and pattern.says not in _TAKING_BACK:
            continue
        for statement in statements[pattern.where][:MAX_STATEMENTS]:
            if pattern.is_in(statement) and not (pattern.says == _RECLAIM and is_general(statement)):
                hits.append(_Hit(pattern, statement))
                found.add(pattern.says)
                if pattern.says not in _TAKING_BACK:
                    break
    return hits


def _first(hits: Sequence[_Hit]) -> Mapping[str, str]:
    said: dict[str, str] = {}
    for hit in hits:
        said.setdefault(hit.pattern.says, hit.pattern.name)
    return said


def _statements(text: str) -> Iterator[str]:
    """Yield the sentences of a text, without addresses of links; none is longer than a pattern may search."""
    for paragraph in text.split("\n\n"):
        waiting = ""
        for sentence in _END_OF_SENTENCE.split(" ".join(_ADDRESS.sub(" ", paragraph).split())):
            waiting = f"{waiting} {sentence}" if waiting else sentence
            if len(waiting) >= _SHORT:
                yield from _pieces(waiting)
                waiting = ""
        if waiting:
            yield from _pieces(waiting)


def _pieces(statement: str) -> Iterator[str]:
    for start in range(0, max(len(statement) - _OVERLAP, 1), _OVERLAP):
        yield statement[start : start + UNLIMITED]
