# SPDX-License-Identifier: Apache-2.0
"""What kind of mail it is, by what its own statements say.

A reclaim is a statement of the mail's own that says so as a fact, and nothing before or around it is of a
kind in which a stranger may speak. Quoted words never decide what the own words say. In doubt a mail is
unclear, which flushes: never a cancel, never a stop. It finds neither Droplets nor times; others say whether
there are any, and of which the reclaim is told (`telling`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spotwatch.mail.model import MailClass
from spotwatch.mail.patterns import BULLETIN, DOUBTFUL, TOPIC
from spotwatch.mail.words import Said, Words

_RECLAIM, _CANCEL, _CORRECTION = MailClass.RECLAIM, MailClass.CANCEL, MailClass.CORRECTION
_UNCLEAR, _OTHER_NOTICE, _OTHER = MailClass.UNCLEAR, MailClass.OTHER_NOTICE, MailClass.OTHER


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
    told: tuple[Said, ...] | None = None
    """What says that one of ours is reclaimed; None: whom it is said of was not asked."""


def classify(words: Words, around: Around) -> tuple[MailClass, str]:
    """Return the class of a mail, and which patterns or what else decided, for people."""
    own = words.own
    if words.is_cut and words.speaks:
        return _UNCLEAR, "it says more than is searched, and speaks of a reclaim"
    if words.speaks:
        found = _back(words, around)
        if found is not None:
            return found
    if _RECLAIM in own:
        return _reclaim(words, around)
    if _UNCLEAR in own and not words.answers and (around.names_ours or not _other(own)):
        return _UNCLEAR, f"no more than {own[_UNCLEAR]}"
    return _quoting(words, around) or _else(words, around)


def _told(words: Words, around: Around) -> tuple[Said, ...]:
    return words.reclaims if around.told is None else around.told


def _back(words: Words, around: Around) -> tuple[MailClass, str] | None:
    """Return what is taken back; None: nothing is."""
    told = _told(words, around)
    # What only speaks of earlier mails takes nothing back in a mail that tells of a reclaim itself.
    cancel = next((one for one in words.cancels if one.speaks or not told), None)
    if cancel is not None:
        against = told[0].name if told else words.corrections[0].name if words.corrections else ""
        if against:
            return _UNCLEAR, f"it says both {cancel.name} and {against}"
        if words.is_hedged:
            return _UNCLEAR, f"{cancel.name}, but {words.is_hedged} also with a condition or an exception"
        return _taken_back(_CANCEL, cancel, words, around)
    if not words.corrections or not around.states_time:
        return None
    found = _taken_back(_CORRECTION, words.corrections[0], words, around)
    if words.is_hedged:
        found = _UNCLEAR, f"{words.corrections[0].name}, but also {words.is_hedged}"
    # In doubt a mail that tells of a reclaim is that, at the earliest of its times.
    return None if found[0] is _UNCLEAR and told else found


def _other(own: Mapping[str, str]) -> str:
    """Return the pattern that knows the mail as another kind; empty: none."""
    return own.get(_OTHER_NOTICE) or own.get(BULLETIN) or own.get(DOUBTFUL) or ""


def _reclaim(words: Words, around: Around) -> tuple[MailClass, str]:
    own = words.own
    told = _told(words, around)
    said, other = (told or words.reclaims)[0].name, _other(own)
    if other and _UNCLEAR not in own and not (told and TOPIC in own and around.names_ours):
        return _OTHER_NOTICE, f"{other}, in spite of {said}"
    if BULLETIN in own and not around.names_ours and not around.states_time:
        return _OTHER_NOTICE, f"{other}; {said} names no Droplet and no time"
    doubt = _doubt(words, told, around)
    return (_UNCLEAR, f"{said}, but {doubt}") if doubt else _whose(_RECLAIM, said, around)


def _doubt(words: Words, told: tuple[Said, ...], around: Around) -> str:
    """Return why words that say reclaim may mean something else; empty: they do not."""
    own = words.own
    if around.names_ours and not told:
        return "of another Droplet or thing than ours, or of none that is clear"
    kind = (words.doubt_of(told[0]) if told else "") or ("an answer" if words.is_reply else "")
    if kind:
        return f"also {kind}, a kind of mail that may carry anybody's words, or says nothing for now"
    if _UNCLEAR not in own and TOPIC not in own:
        return "it does not speak of Spot"
    # A mail of a new Droplet tells how Spot works, in words that no list of patterns holds all.
    is_vague = _OTHER_NOTICE in own and not around.states_time
    if is_vague or (_other(own) and not around.names_ours):
        return f"it also says {_other(own)}, and {'no time' if is_vague else 'no name of ours'}"
    return "it states a time that is days ahead, and no other" if around.states_far else ""


def _taken_back(mail_class: MailClass, said: Said, words: Words, around: Around) -> tuple[MailClass, str]:
    why = said.name
    kind = words.doubts[0].name if words.doubts else words.doubt_of(said)
    if kind or (_other(words.own) and not around.names_ours):
        return _UNCLEAR, f"it says both {why} and {kind or _other(words.own)}"
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
