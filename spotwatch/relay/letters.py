# SPDX-License-Identifier: Apache-2.0
"""What a judged mail, or a signed notice, makes the relay write to whom.

Pure: it asks nobody, and keeps nothing. No time that a stranger has written lets a letter stay longer, or
seem newer, than the moment at which it came, or end sooner. A cancel without proof is told nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from spotwatch.mail.mailbox import (
    BROADCAST,
    Address,
    Letter,
    LetterEvent,
    address_of_name,
    expiry,
    message_of,
)
from spotwatch.mail.model import Droplet, Judgement
from spotwatch.masking import escape
from spotwatch.model import Evidence
from spotwatch.providers._do_message import Message
from spotwatch.relay.fleet import Fleet

WINDOW = timedelta(hours=2)
"""The notice that DigitalOcean aims at (its tutorial on spot GPU Droplets, September 2026)."""
MAX_WEAK = 50
"""Letters that one mail may make without proof; of more, one to everybody takes the place."""


def of_judgements(
    judgements: Iterable[Judgement], *, now: datetime, sole: Droplet | None = None
) -> tuple[Letter, ...]:
    """Return the letters that follow from a mail: one to each Droplet that it names, or one to everybody.

    A stranger's mail can name all of a fleet: without proof, one letter to everybody says the same.

    Args:
        judgements: of one mail.
        now: aware.
        sole: whom a mail that names nobody is about, by configuration; None: it is about everybody.
    """
    return _few(
        _letter(
            _whose(one.droplet or (sole if one.evidence is Evidence.STRONG else None)),
            one.event,
            evidence=one.evidence,
            at=one.at,
            issued_at=one.signed_at,
            message=one.message_key,
            detail=one.detail,
            now=now,
        )
        for one in judgements
        if one.event != "none" and (one.event != "cancel" or one.evidence is Evidence.STRONG)
    )


def of_notice(
    notice: Message, *, fleet: Fleet, webhook_id: str, is_doubtful: bool, now: datetime
) -> tuple[Letter, ...]:
    """Return the letters that follow from a signed notice.

    A number is strong, and so is a name that is one Droplet's alone. A name of several goes to each of them,
    one that the fleet does not know to whoever has it, no name at all to everybody: all these are weak.

    Args:
        notice: verified.
        fleet: who has which name.
        webhook_id: by which its copies are known.
        is_doubtful: it may be a replay, since its time fits only a clock that is wrong, or a memory is lost.
        now: aware.
    """
    name = notice.name.strip().casefold()
    found = fleet.called(name) if name else ()
    if notice.droplet_id is not None:
        is_certain = not found or notice.droplet_id in {one.droplet_id for one in found}
        to = {Address(notice.droplet_id): is_certain}
    elif found:
        to = {Address(one.droplet_id): len(found) == 1 and name in one.names for one in found}
    else:
        to = {address_of_name(name) if name else BROADCAST: False}
    return _few(
        _letter(
            address,
            notice.event,
            evidence=Evidence.STRONG if is_certain and not is_doubtful else Evidence.WEAK,
            at=notice.at,
            issued_at=notice.signed_at,
            message=webhook_id,
            detail=f"signed notice by way of the relay, naming {notice.subject}",
            now=now,
        )
        for address, is_certain in to.items()
    )


def besides(
    letters: Sequence[Letter], names: Mapping[int, Iterable[str]], *, message: str, why: str, now: datetime
) -> tuple[Letter, ...]:
    """Return what is told beside `letters` while the list of Droplets is old: save, whoever it may concern.

    A Droplet that is new is not in the list yet, and may have taken over the name of one that is gone.

    Args:
        letters: of one mail or notice, by the old list.
        names: those of each number that they are for.
        message: what it is known by.
        why: the list cannot be relied on, for people.
        now: aware.
    """
    told = [one for one in letters if one.event != "cancel"]
    if letters and not told:
        return ()
    by_name = tuple(
        replace(
            one,
            to=address_of_name(name),
            event="reclaim",
            at=now + WINDOW,
            evidence=Evidence.WEAK,
            detail=f"{why}: {one.detail}",
        )
        for one in told
        if one.to.droplet_id is not None
        for name in names.get(one.to.droplet_id, ())
    )
    return (*by_name[:MAX_WEAK], to_everybody(message=message, why=why, now=now))


def to_everybody(*, message: str, why: str, now: datetime) -> Letter:
    """Return what is told when it cannot be known whom a mail concerns: save, all of you."""
    return _letter(
        BROADCAST,
        "reclaim",
        evidence=Evidence.WEAK,
        at=None,
        issued_at=now,
        message=message,
        detail=why,
        now=now,
    )


def _few(letters: Iterable[Letter]) -> tuple[Letter, ...]:
    """Return `letters` of one mail, the weak ones as one to everybody where they are too many."""
    made = tuple(letters)
    weak = [letter for letter in made if letter.evidence is Evidence.WEAK]
    if len(weak) <= MAX_WEAK:
        return made
    earliest = min(weak, key=lambda letter: letter.at or letter.issued_at)
    detail = f"to everybody, since it concerns {len(weak)} Droplets: {earliest.detail}"
    strong = (letter for letter in made if letter.evidence is Evidence.STRONG)
    return (*strong, replace(earliest, to=BROADCAST, detail=detail))


def _whose(droplet: Droplet | None) -> Address:
    return BROADCAST if droplet is None else Address(droplet.droplet_id)


def _letter(
    to: Address,
    event: LetterEvent,
    *,
    evidence: Evidence,
    at: datetime | None,
    issued_at: datetime,
    message: str,
    detail: str,
    now: datetime,
) -> Letter:
    issued_at = min(issued_at, now)
    if to.droplet_id is None:
        evidence = Evidence.WEAK
    # Without proof its times say nothing.
    said = (at or issued_at + WINDOW) if evidence is Evidence.STRONG else now + WINDOW
    ends = None if event == "cancel" else min(said, now + WINDOW)
    return Letter(
        to=to,
        event=event,
        at=ends,
        issued_at=issued_at,
        expires_at=expiry(ends, now),
        evidence=evidence,
        message=message_of(message),
        detail=escape(detail),
    )
