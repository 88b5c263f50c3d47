# SPDX-License-Identifier: Apache-2.0
"""Requests as ForwardEmail posts them."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

from spotwatch.mail.inbound.forwardemail import SIGNATURE, Config
from spotwatch.received import Received
from tests.mail.inbound.services import MAIL

KEY = "0123456789abcdef0123456789abcdef"
OLD_KEY = "fedcba9876543210fedcba9876543210"
SECRETS = {"new": KEY, "old": OLD_KEY}
config = Config(key_files=("new", "old"))


def request(row: Any, key: str = KEY, **headers: str) -> Received:
    """Return a signed request."""
    body = json.dumps(row).encode()
    made = {SIGNATURE: hmac.new(key.encode(), body, hashlib.sha256).hexdigest()} | headers
    return Received(headers={k: v for k, v in made.items() if v}, body=body, path="forwardemail")


def row(**changes: Any) -> dict[str, Any]:
    """Return the JSON of MAIL."""
    return {
        "subject": "Your Spot Droplet will be reclaimed",
        "from": {"value": [{"address": "support@digitalocean.com"}], "text": "support@digitalocean.com"},
        "to": {"value": [{"address": "me@example.com"}], "text": "me@example.com"},
        "date": "2026-11-29T11:59:00.000Z",
        "messageId": "<one@digitalocean.com>",
        "text": "Droplet spot-trainer-01 goes at 2026-11-29 14:00 UTC.",
        "html": False,
        "raw": MAIL.decode(),
    } | changes


def good() -> Received:
    """Return the raw mail, signed."""
    return request(row())


def tampered() -> list[tuple[str, Received]]:
    """Return what is not ForwardEmail's."""
    right = good()
    return [
        ("another key", request(row(), "other")),
        ("another body", Received(headers=right.headers, body=right.body + b" ")),
        ("no signature", request(row(), **{SIGNATURE: ""})),
        ("capital letters", request(row(), **{SIGNATURE: right.headers[SIGNATURE].upper()})),
        ("a signature of a megabyte", request(row(), **{SIGNATURE: "a" * 1_000_000})),
    ]
