# SPDX-License-Identifier: Apache-2.0
"""What follows from a mail, by the rules of evidence: a stop needs all of them, a flush needs none.

Strong is a mail that a trusted domain signed for its sender, to an address of this account, lately; whole,
from no person and no answering machine; that clearly says reclaim, cancel or correction of a Droplet that it
names by number or a name of its own. Whatever else speaks of a reclaim is weak. It reads no words,
checks no signature, and does not know what was judged before.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Literal

from spotwatch.config import Mail as Rules
from spotwatch.mail.evidence import is_of_the_clock, unfit, unnamed, unproven
from spotwatch.mail.explaining import Facts, detail, lines
from spotwatch.mail.model import Delivery, Judgement, Mail, MailClass, Proof, Proven, Reading
from spotwatch.model import Evidence, to_rfc3339

Event = Literal["reclaim", "cancel", "correction", "none"]
Result = Literal["accepted", "not_mine", "ignored", "unproven"]

_SAYS: dict[MailClass, Event] = {
    MailClass.RECLAIM: "reclaim",
    MailClass.CANCEL: "cancel",
    MailClass.CORRECTION: "correction",
    MailClass.UNCLEAR: "reclaim",
}


def judge(
    mail: Mail,
    proof: Proof,
    reading: Reading,
    *,
    delivery: Delivery,
    rules: Rules,
    trust_relay: bool,
    now: datetime,
) -> tuple[Judgement, ...]:
    """Return what follows for each Droplet that the mail names, or one judgement for all or for none.

    A weak correction comes out as a weak reclaim, a weak cancel as a cancel that ends nothing, but
    may be proven when it comes again.

    Args:
        mail: as read.
        proof: what DKIM says of it.
        reading: what it says.
        delivery: how it came.
        rules: what the configuration asks for.
        trust_relay: a service whose signature covers the mail proves it, unless the original has a DKIM
            signature that is not known to hold.
        now: aware.
    """
    doubts = unproven(mail, proof, delivery=delivery, rules=rules, trust_relay=trust_relay, now=now)
    faults = unfit(mail, reading)
    is_open = proof.result is Proven.UNKNOWN or is_of_the_clock(mail, delivery, rules, now)
    return tuple(
        _judgement(
            Facts(mail, proof, reading, delivery, mention, doubts, (*faults, *unnamed(mention, rules))),
            is_open=is_open,
        )
        for mention in (reading.mentions or (None,))
    )


def _judgement(facts: Facts, *, is_open: bool) -> Judgement:
    mail, reading = facts.mail, facts.reading
    is_strong = not facts.doubts and not facts.faults
    event, result = _outcome(facts, is_strong=is_strong)
    evidence = Evidence.STRONG if is_strong and event != "none" else Evidence.WEAK
    return Judgement(
        event=event,
        evidence=evidence,
        result=result,
        droplet=None if facts.mention is None else facts.mention.droplet,
        at=((facts.mention and facts.mention.at) or reading.at)
        if event in ("reclaim", "correction")
        else None,
        signed_at=mail.date or facts.delivery.received_at,
        message_key=_key(mail, facts.proof),
        is_temporary=event != "none" and is_open,
        is_kept=event != "none" and _is_to_be_kept(facts),
        detail=detail(facts, event, evidence),
        lines=lines(facts, event, evidence, result),
    )


def _key(mail: Mail, proof: Proof) -> str:
    """Return what a mail is known by: of a proven one only what is signed, which no copy has otherwise."""
    if proof.result is not Proven.YES or "message-id" in proof.signed_headers:
        return mail.message_id or mail.digest
    # Blanks may be changed under a relaxed signature. The text as read will not do: how it is read may be
    # left open to anybody on the way.
    body = mail.raw.partition(b"\r\n\r\n")[2].split()
    dated = "" if mail.date is None else to_rfc3339(mail.date)
    parts = (*(" ".join(part.split()).encode() for part in (mail.subject, dated)), *body)
    return hashlib.sha256(b" ".join(parts)).hexdigest()


def _outcome(facts: Facts, *, is_strong: bool) -> tuple[Event, Result]:
    event = _SAYS.get(facts.reading.mail_class, "none")
    if event == "none" or facts.mail.is_automatic:
        return "none", "ignored"
    if facts.mention is None and facts.reading.names_others:
        return "none", "not_mine"
    if event == "correction" and not is_strong:
        event = "reclaim"
    return event, "unproven" if facts.doubts else "accepted"


def _is_to_be_kept(facts: Facts) -> bool:
    """Tell whether people should look at it: nobody knows these mails well enough yet."""
    reading = facts.reading
    return (
        reading.mail_class is MailClass.UNCLEAR
        or bool(facts.mail.problems)
        or (reading.at is not None and not reading.is_at_stated)
    )
