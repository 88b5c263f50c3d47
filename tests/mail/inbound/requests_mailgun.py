# SPDX-License-Identifier: Apache-2.0
"""Requests as Mailgun's routes post them."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import urlencode

from spotwatch.mail.inbound.mailgun import Config
from spotwatch.received import Received
from tests.mail.inbound.services import MAIL, NOW

KEY = "key-0123456789abcdef0123456789abcdef"
OLD_KEY = "key-fedcba9876543210fedcba9876543210"
SECRETS = {"new": KEY, "old": OLD_KEY}
TOKEN = "c1d2e3f4" * 6 + "ab"
config = Config(signing_key_files=("new", "old"))


def signed(key: str = KEY, *, timestamp: int | str | None = None, token: str = TOKEN) -> dict[str, str]:
    """Return the three fields of a signature."""
    stamp = str(int(NOW.timestamp()) if timestamp is None else timestamp)
    signature = hmac.new(key.encode(), f"{stamp}{token}".encode(), hashlib.sha256).hexdigest()
    return {"timestamp": stamp, "token": token, "signature": signature}


def form(*fields: tuple[str, str | bytes]) -> Received:
    """Return a urlencoded request with these fields in this order."""
    headers = {"content-type": "application/x-www-form-urlencoded"}
    return Received(headers=headers, body=urlencode(fields).encode(), path="mailgun/mime")


def good() -> Received:
    """Return the raw mail, signed."""
    return form(("recipient", "in@example.com"), ("body-mime", MAIL), *signed().items())


def tampered() -> list[tuple[str, Received]]:
    """Return what is not Mailgun's."""
    right = signed()
    return [
        ("another key", form(("body-mime", MAIL), *signed("key-other").items())),
        ("another time", form(("body-mime", MAIL), *(right | {"timestamp": "1796000001"}).items())),
        ("another token", form(("body-mime", MAIL), *(right | {"token": "f" * 50}).items())),
        ("no signature", form(("body-mime", MAIL), ("timestamp", right["timestamp"]), ("token", TOKEN))),
        ("an empty signature", form(("body-mime", MAIL), *(right | {"signature": ""}).items())),
        ("digits of another script", form(("body-mime", MAIL), *signed(timestamp="\u0661" * 10).items())),
        ("the last signature counts", form(*right.items(), ("body-mime", MAIL), ("signature", "0" * 64))),
    ]
