# SPDX-License-Identifier: Apache-2.0
"""Requests as Postmark's inbound webhook posts them."""

from __future__ import annotations

import base64
import json
from typing import Any

from spotwatch.mail.inbound.postmark import Config
from spotwatch.received import Received
from tests.mail.inbound.services import MAIL

PASSWORD = "postmark:0123456789abcdef01234567"
OLD_PASSWORD = "postmark:76543210fedcba9876543210"
SECRETS = {"new": PASSWORD, "old": OLD_PASSWORD}
config = Config(password_files=("new", "old"))
MESSAGE_ID = "73e6d360-66eb-11e1-8e72-a8904824019b"


def request(row: Any, password: str = PASSWORD, **headers: str) -> Received:
    """Return a request with a password."""
    made = {"authorization": f"Basic {base64.b64encode(password.encode()).decode()}"} | headers
    return Received(headers=made, body=json.dumps(row).encode(), path="postmark")


def row(**changes: Any) -> dict[str, Any]:
    """Return the JSON of MAIL."""
    return {
        "From": "support@digitalocean.com",
        "FromFull": {"Email": "support@digitalocean.com", "Name": "DigitalOcean", "MailboxHash": ""},
        "To": "me@example.com",
        "Subject": "Your Spot Droplet will be reclaimed",
        "MessageID": MESSAGE_ID,
        "Date": "Sun, 29 Nov 2026 11:59:00 +0000",
        "TextBody": "Droplet spot-trainer-01 goes at 2026-11-29 14:00 UTC.",
        "HtmlBody": "",
        "Headers": [
            {"Name": "Return-Path", "Value": "<bounce@digitalocean.com>"},
            {"Name": "Message-ID", "Value": "<one@digitalocean.com>"},
        ],
        "Attachments": [],
        "RawEmail": MAIL.decode(),
    } | changes


def good() -> Received:
    """Return the raw mail, with the password."""
    return request(row())


def tampered() -> list[tuple[str, Received]]:
    """Return what does not know the password."""
    return [
        ("another password", request(row(), "postmark:guess")),
        ("a password and more", request(row(), PASSWORD + "x")),
        ("no password", request(row(), authorization="")),
        ("no base64", request(row(), authorization="Basic \u00fc")),
        ("another scheme", request(row(), authorization=f"Bearer {PASSWORD}")),
    ]
