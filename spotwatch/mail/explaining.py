# SPDX-License-Identifier: Apache-2.0
"""A judgement in words: one line for the notice, about ten for `spotwatch mail test`.

All that a stranger wrote is escaped and cut. Nothing is decided here.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwatch.mail.model import Delivery, Mail, Mention, Proof, Proven, Reading
from spotwatch.masking import escape
from spotwatch.model import Evidence, to_rfc3339

_SHOWN = 100
_MAX_FINDINGS = 5


@dataclass(frozen=True, slots=True)
class Facts:
    """What a judgement of one Droplet rests on."""

    mail: Mail
    proof: Proof
    reading: Reading
    delivery: Delivery
    mention: Mention | None
    doubts: tuple[str, ...]
    """What is missing to know who wrote the mail, to whom and when."""
    faults: tuple[str, ...]
    """What else keeps it from being strong."""


def detail(facts: Facts, event: str, evidence: Evidence) -> str:
    """Return the judgement in one line."""
    if event == "none":
        return f"mail: {facts.reading.mail_class.value}, names {_names(facts)}"
    proven = (
        f"signed by {escape(facts.proof.domain)}" if facts.proof.result is Proven.YES else facts.proof.result
    )
    why = "" if evidence is Evidence.STRONG else f"; weak: {(*facts.doubts, *facts.faults)[0]}"
    return escape(f"mail, {proven}: {facts.reading.mail_class.value}, names {_names(facts)}{why}", limit=300)


def lines(facts: Facts, event: str, evidence: Evidence, result: str) -> tuple[str, ...]:
    """Return what was recognised, how each header is proven, what follows, and what is missing for more."""
    mail, reading = facts.mail, facts.reading
    found = [
        f"class       {reading.mail_class.value}: {escape(reading.class_why)}",
        f"names       {_names(facts)}",
        f"when        {_when(reading)}",
        f"proof       {facts.proof.result.value}{_proof(facts)}",
        f"From        {_header(facts, 'from', mail.sender)}",
        f"To          {_header(facts, 'to', ', '.join(mail.recipients))}",
        f"Subject     {_header(facts, 'subject', mail.subject)}",
        f"Date        {_header(facts, 'date', '' if mail.date is None else to_rfc3339(mail.date))}",
        f"Message-ID  {_header(facts, 'message-id', mail.message_id)}",
        f"follows     {_follows(facts, event, evidence, result)}",
    ]
    if event != "none":
        found.extend(f"missing     {point}" for point in (*facts.doubts, *facts.faults))
    return tuple(found)


def _names(facts: Facts) -> str:
    if facts.mention is not None:
        droplet = facts.mention.droplet
        return f"Droplet {droplet.droplet_id} by its {facts.mention.by}"
    return "other Droplets only" if facts.reading.names_others else "no Droplet"


def _when(reading: Reading) -> str:
    return "-" if reading.at is None else f"{to_rfc3339(reading.at)}, {reading.at_why}"


def _proof(facts: Facts) -> str:
    return "".join(f"; {escape(finding)}" for finding in facts.proof.findings[:_MAX_FINDINGS])


def _header(facts: Facts, name: str, value: str) -> str:
    if not value:
        return "missing or unreadable"
    is_signed = facts.proof.result is Proven.YES and name in facts.proof.signed_headers
    return f"{escape(value, limit=_SHOWN)} ({'signed' if is_signed else 'not signed'})"


def _follows(facts: Facts, event: str, evidence: Evidence, result: str) -> str:
    is_strong = evidence is Evidence.STRONG
    if event == "none":
        if result == "not_mine":
            return "nothing: it is about other Droplets"
        is_automatic = facts.mail.is_automatic
        return (
            f"nothing: it {'is an automatic answer or a report' if is_automatic else 'announces no reclaim'}"
        )
    if event == "cancel":
        return "the notice in force ends" if is_strong else "nothing: without proof no notice ends"
    if not is_strong:
        return "a flush (save and go on), never a stop"
    return "a flush now, and a stop (save and exit) before that time" + (
        ", which replaces the one told before" if event == "correction" else ""
    )
