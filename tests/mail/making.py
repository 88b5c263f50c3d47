# SPDX-License-Identifier: Apache-2.0
"""Mails as DigitalOcean might write them, genuine ones signed, for tests of what becomes of them.

It holds no test.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from email.utils import format_datetime
from typing import Any

import dns.message
import dns.rcode
import dns.rrset

from spotwatch.mail.model import Delivery
from tests.mail.signing import Signer

ACCOUNT = "owner@example.com"
OURS = 512345678
SIGNER = Signer()
_SUBJECTS = {
    "reclaim": "Your Spot Droplet will be reclaimed",
    "cancel": "Cancelled: your Spot Droplet will not be reclaimed",
}
_SENTENCES = {
    "reclaim": "Your Spot Droplet {whom} will be reclaimed at {at} UTC.",
    "cancel": "The reclaim of your Spot Droplet {whom} has been cancelled: it will no longer be reclaimed.",
}


def plain(  # noqa: PLR0913 - the parts of a mail
    *,
    sent_at: datetime,
    event: str = "reclaim",
    whom: str = f"spot-trainer-01 (ID {OURS})",
    at: datetime | None = None,
    to: str = ACCOUNT,
    sender: str = "DigitalOcean <support@digitalocean.com>",
    message_id: str = "<one@digitalocean.com>",
    subject: str = "",
    text: str = "",
) -> bytes:
    """Return a mail that nobody has signed; its time is two hours after it was sent unless `at` says so."""
    at = at or sent_at + timedelta(hours=2)
    said = text or _SENTENCES[event].format(whom=whom, at=f"{at:%Y-%m-%d %H:%M}")
    return (
        f"From: {sender}\r\nTo: {to}\r\nSubject: {subject or _SUBJECTS[event]}\r\n"
        f"Date: {format_datetime(sent_at)}\r\nMessage-ID: {message_id}\r\n"
        "MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\n"
        "Content-Transfer-Encoding: 8bit\r\n\r\n"
        f"Hello,\r\n\r\n{said}\r\n\r\nThe DigitalOcean Team\r\n"
    ).encode()


def genuine(**more: Any) -> bytes:
    """Return the same, signed by DigitalOcean's key of these tests."""
    return SIGNER.sign(plain(**more))


def forged(**more: Any) -> bytes:
    """Return the same, signed by another's key in DigitalOcean's name."""
    return Signer(owner="forger").sign(plain(**more))


def delivered(raw: bytes, *, received_at: datetime, **more: Any) -> Delivery:
    """Return a mail as a service hands it over that signs no body."""
    given: dict[str, Any] = {
        "service": "test",
        "raw": raw,
        "is_original": True,
        "covers_body": False,
        "replay_id": "one",
        "signed_at": received_at,
        "received_at": received_at,
    }
    return Delivery(**(given | more))


def zone(records: Mapping[str, str]) -> Any:
    """Return what answers a name server's questions with these TXT records."""

    def answer(question: dns.message.Message) -> bytes:
        made = dns.message.make_response(question)
        name = question.question[0].name
        text = records.get(name.to_text(omit_final_dot=True).lower())
        if text is None:
            made.set_rcode(dns.rcode.NXDOMAIN)
        else:
            parts = " ".join(f'"{text[at : at + 200]}"' for at in range(0, len(text), 200))
            made.answer.append(dns.rrset.from_text(name, 300, "IN", "TXT", parts))
        return made.to_wire()

    return answer
