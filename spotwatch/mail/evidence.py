# SPDX-License-Identifier: Apache-2.0
"""What a mail lacks to be strong evidence, each point as a clause for people.

It weighs nothing: one point is enough to make a mail weak.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from spotwatch.config import Mail as Rules
from spotwatch.mail.model import Delivery, Mail, MailClass, Mention, Proof, Proven, Reading
from spotwatch.masking import escape
from spotwatch.model import to_rfc3339

FUTURE = timedelta(minutes=10)
"""How far the signed date may be ahead of our clock."""

# Two of these, and the reader and the signer may mean different ones.
_ONCE = ("from", "subject", "date", "to", "message-id", "content-type")
_HOW_TO_READ = frozenset({"content-type", "content-transfer-encoding"})
_CLEAR = frozenset({MailClass.RECLAIM, MailClass.CANCEL, MailClass.CORRECTION})


def is_relay_trusted(mail: Mail, proof: Proof, *, delivery: Delivery, trust_relay: bool) -> bool:
    """Tell whether the service's own signature counts for the mail.

    It says which way the mail came, not who wrote it: only who has mail checked before may trust it. It does
    not count when the mail is the original and carries a DKIM signature that is not known to hold: somebody
    has changed it, or it is another's.
    """
    is_contradicted = delivery.is_original and mail.header_counts.get("dkim-signature", 0) > 0
    return trust_relay and delivery.covers_body and not is_contradicted and proof.result is not Proven.UNKNOWN


def is_form_signed(proof: Proof) -> bool:
    """Tell whether nobody but the signer can have said how the body is to be read."""
    return proof.result is Proven.YES and proof.signed_headers >= _HOW_TO_READ


def unproven(
    mail: Mail, proof: Proof, *, delivery: Delivery, rules: Rules, trust_relay: bool, now: datetime
) -> tuple[str, ...]:
    """Return what is missing for who wrote this mail, to whom, and when."""
    is_relayed = is_relay_trusted(mail, proof, delivery=delivery, trust_relay=trust_relay)
    return (
        *_of_sender(mail, proof, rules.trusted_domains, is_relayed=is_relayed),
        *_of_address(mail, proof, rules.account_addresses),
        *_of_date(mail, proof, rules.max_age_seconds, now),
        *(
            ("the clock is not set yet, so that may change",)
            if is_of_the_clock(mail, delivery, rules, now)
            else ()
        ),
        *(
            f"{mail.header_counts[name]} headers {name.title()}"
            for name in _ONCE
            if mail.header_counts.get(name, 0) > 1
        ),
        *(f"the service doubts it: {escape(doubt)}" for doubt in delivery.doubts),
    )


def is_of_the_clock(mail: Mail, delivery: Delivery, rules: Rules, now: datetime) -> bool:
    """Tell whether the mail's date may be wrong only by a clock of ours that is not set yet."""
    return not delivery.is_clock_set and bool(_why_untimely(mail.date, rules.max_age_seconds, now))


def unfit(mail: Mail, reading: Reading) -> tuple[str, ...]:
    """Return what makes the mail weak whoever wrote it."""
    points = [f"not all was read: {escape(problem)}" for problem in mail.problems]
    if mail.is_forwarded:
        points.append("a person has forwarded it")
    if mail.is_automatic:
        points.append("it is an automatic answer or a report")
    if reading.mail_class not in _CLEAR:
        points.append("what it says is not clear")
    if reading.mail_class in _CLEAR and not reading.is_in_subject:
        points.append("its Subject speaks of no reclaim")
    return tuple(points)


def unnamed(mention: Mention | None, rules: Rules) -> tuple[str, ...]:
    """Return what is missing for the mail to be about this very Droplet."""
    if rules.single_droplet_account and (mention is None or mention.is_told):
        return ()
    if mention is None:
        return ("it names no Droplet (mail.single_droplet_account: it is the account's only one)",)
    if not mention.is_told:
        return ("it names this Droplet, and tells of the reclaim of others",)
    if mention.by == "hostname":
        return (
            "another Droplet may be called so (provider.digitalocean.names: the name is this one's alone)",
        )
    if mention.by == "address":
        return ("anybody can find out an address (provider.digitalocean.names: a name of this one's alone)",)
    return ()


def _of_sender(
    mail: Mail, proof: Proof, trusted_domains: Sequence[str], *, is_relayed: bool
) -> Iterator[str]:
    sender_domain = mail.sender.rpartition("@")[2]
    trusted = [domain for domain in trusted_domains if _is_within(sender_domain, domain)]
    if proof.result is Proven.YES:
        if not any(_is_within(proof.domain, domain) for domain in trusted):
            yield f"From is not of the domain that signed it, {escape(proof.domain)}"
    elif not is_relayed:
        if proof.result is Proven.UNKNOWN:
            yield "its signature is not checked yet, for DNS did not answer or the clock is not set"
        else:
            why = f": {escape(proof.findings[0], limit=120)}" if proof.findings else ""
            yield f"no signature of {' or '.join(trusted_domains) or 'a trusted domain'} holds{why}"
    elif not trusted:
        yield f"From is not of {' or '.join(trusted_domains) or 'a trusted domain'}"


def _of_address(mail: Mail, proof: Proof, addresses: Sequence[str]) -> Iterator[str]:
    if not addresses:
        yield "mail.account_addresses is empty, so anybody's Droplet may be meant"
    elif not any(_is_ours(recipient, addresses) for recipient in mail.recipients):
        yield "To is none of mail.account_addresses"
    elif proof.result is Proven.YES and "to" not in proof.signed_headers:
        yield "To is not signed"


def _of_date(mail: Mail, proof: Proof, max_age_seconds: float, now: datetime) -> Iterator[str]:
    if mail.date is None:
        yield "it has no Date with a zone"
    elif why := _why_untimely(mail.date, max_age_seconds, now):
        yield why
    elif proof.result is Proven.YES and "date" not in proof.signed_headers:
        yield "Date is not signed"


def _why_untimely(dated: datetime | None, max_age_seconds: float, now: datetime) -> str:
    if dated is None:
        return ""
    if now - dated > timedelta(seconds=max_age_seconds):
        return f"its Date, {to_rfc3339(dated)}, is older than mail.max_age_seconds, {max_age_seconds:g}"
    return f"its Date, {to_rfc3339(dated)}, lies ahead" if dated - now > FUTURE else ""


def _is_ours(recipient: str, addresses: Sequence[str]) -> bool:
    """Tell whether an address is one of `addresses`, or one of them that has no tag, with a tag.

    `me+spot@` arrives where `me@` does; but who writes a tag down has accounts that differ by it.
    """
    name, _, domain = recipient.rpartition("@")
    untagged = f"{name.partition('+')[0]}@{domain}"
    return any(address.strip().lower() in (recipient, untagged) for address in addresses)


def _is_within(domain: str, parent: str) -> bool:
    return bool(parent) and (domain == parent or domain.endswith(f".{parent}"))
