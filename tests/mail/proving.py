# SPDX-License-Identifier: Apache-2.0
"""One mail that DigitalOcean might send, and short ways to sign, change and prove it.

It holds no test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import dkim

from spotwatch.mail.dkim import key_names, prove
from spotwatch.mail.keys import KeyAnswer
from spotwatch.mail.model import Proof
from spotwatch.mail.reading import read_mail
from tests.mail.signing import Signer

TRUSTED = ("digitalocean.com",)
"""Domains that the configuration trusts."""
DO = Signer("digitalocean.com", "s1")
"""Who may sign."""
THIEF = Signer("evil.com", "s1", owner="thief")
"""Who may not, with a key of his own."""
NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
"""When `MAIL` was sent."""

MAIL = b"""\
From: DigitalOcean <support@digitalocean.com>
To: Me <me@example.org>
Subject: Your Spot Droplet will be reclaimed
Date: Sun, 29 Nov 2026 12:00:00 +0000
Message-ID: <1@digitalocean.com>
MIME-Version: 1.0
Content-Type: text/plain; charset=utf-8
Content-Transfer-Encoding: 7bit

Hello,

your Droplet  spot-1  will be reclaimed at 2026-11-29 14:00 UTC.

Team DigitalOcean
"""


def proof_of(
    raw: bytes,
    keys: Mapping[str, KeyAnswer] = DO.answers,
    *,
    trusted: Sequence[str] = TRUSTED,
    now: datetime | None = NOW,
) -> Proof:
    """Return what DKIM says of a mail by its bytes."""
    return prove(read_mail(raw), keys, trusted_domains=trusted, now=now)


def names_asked(raw: bytes) -> tuple[str, ...]:
    """Return the names that DNS would be asked for."""
    return key_names(read_mail(raw), trusted_domains=TRUSTED, now=NOW)


def is_right_for_dkimpy(raw: bytes, *signers: Signer) -> bool:
    """Tell what a verifier without rules of its own says."""
    records = {name: text for signer in signers for name, text in signer.records.items()}
    return bool(
        dkim.verify(
            raw, dnsfunc=lambda name, timeout: records[name.decode().rstrip(".")].encode(), minkey=512
        )
    )


def changed(raw: bytes, old: bytes, new: bytes) -> bytes:
    """Return a mail with `new` in the one place of `old`."""
    assert raw.count(old) == 1
    return raw.replace(old, new)
