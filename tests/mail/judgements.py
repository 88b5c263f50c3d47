# SPDX-License-Identifier: Apache-2.0
"""Mails of DigitalOcean, how they came and how they are proven, as arguments of the rules of evidence.

It holds no test.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from spotwatch.config import Mail as Rules
from spotwatch.mail.judging import judge
from spotwatch.mail.model import Delivery, Droplet, Judgement, Mail, Proof, Proven
from spotwatch.mail.patterns import default_patterns
from spotwatch.mail.reading import read_mail
from spotwatch.mail.understanding import understand
from spotwatch.model import Evidence
from tests.mail.samples import ADDRESS, DELAY, OURS, SENT_AT

ALL = frozenset({"from", "to", "subject", "date", "message-id"})
SIGNED = Proof(result=Proven.YES, domain="digitalocean.com", signed_headers=ALL, findings=("it holds",))
UNSIGNED = Proof(result=Proven.NO, findings=("no signature",))
RULES = Rules(account_addresses=("Ops@Example.org",))
SINGLE = replace(RULES, single_droplet_account=True)
TEXT = "Your Spot Droplet spot-trainer-01 will be reclaimed at 2026-11-29 13:50 UTC."
AT = SENT_AT + timedelta(minutes=110)


def written(text: str = TEXT, *, subject: str = "Spot Droplet", **changes: Any) -> Mail:
    """Return a mail of DigitalOcean to the account, with fields of `Mail` changed."""
    top = ("From: no-reply@digitalocean.com", f"To: {ADDRESS}", f"Subject: {subject}", "Message-ID: <1@x>")
    raw = "\n".join([*top, "Date: Sun, 29 Nov 2026 12:00:00 +0000", "", text]).encode()
    return replace(read_mail(raw), **changes)


def delivered(mail: Mail, **changes: Any) -> Delivery:
    """Return how it came: raw, by a service that signs no mail."""
    came = Delivery(
        service="standard",
        raw=mail.raw,
        is_original=True,
        covers_body=False,
        replay_id="r",
        signed_at=None,
        received_at=(mail.date or SENT_AT) + DELAY,
    )
    return replace(came, **changes)


def judged(
    mail: Mail,
    proof: Proof = SIGNED,
    *droplets: Droplet,
    rules: Rules = RULES,
    trust_relay: bool = False,
    now: datetime | None = None,
    **delivery: Any,
) -> tuple[Judgement, ...]:
    """Return what follows."""
    came = delivered(mail, **delivery)
    asked = droplets or (OURS,)
    reading = understand(mail, droplets=asked, patterns=default_patterns(), received_at=came.received_at)
    return judge(
        mail, proof, reading, delivery=came, rules=rules, trust_relay=trust_relay, now=now or came.received_at
    )


def only(*args: Any, **kwargs: Any) -> Judgement:
    """Return the one thing that follows."""
    found = judged(*args, **kwargs)
    assert len(found) == 1
    return found[0]


def missing(judgement: Judgement) -> list[str]:
    """Return what is said to be missing."""
    return [line.removeprefix("missing").strip() for line in judgement.lines if line.startswith("missing")]


def follows(judgement: Judgement) -> str:
    """Return what follows from it in a word."""
    if judgement.event == "none":
        return judgement.result
    is_strong = judgement.evidence is Evidence.STRONG
    if judgement.event == "reclaim":
        return "stop" if is_strong else "flush"
    return judgement.event if is_strong else f"weak {judgement.event}"
