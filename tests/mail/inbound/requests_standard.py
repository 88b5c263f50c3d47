# SPDX-License-Identifier: Apache-2.0
"""Requests as a holder of a Standard Webhooks secret sends them, and as nobody may.

It holds no test.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

from spotwatch.mail.inbound.standard import Config
from spotwatch.received import Received
from spotwatch.webhooks import signed_headers
from tests.mail.inbound.services import MAIL, NOW

SECRET = bytes(range(32))
SECRET_TEXT = "whsec_" + base64.b64encode(SECRET).decode()

config = Config(secret_files=("standard-secret",))
SECRETS = {"standard-secret": SECRET_TEXT}


def signed(
    body: bytes,
    content_type: str = "message/rfc822",
    *,
    at: int = int(NOW.timestamp()),
    secret: bytes = SECRET,
) -> Received:
    """Return a rightly signed request."""
    headers = signed_headers(secret, "msg_1", at, body)
    return Received(headers={**headers, "content-type": content_type}, body=body, path="standard")


def as_json(document: Any) -> Received:
    """Return a rightly signed request of JSON."""
    return signed(json.dumps(document).encode(), "application/json")


def good() -> Received:
    """Return the raw mail, signed."""
    return signed(MAIL)


def tampered() -> list[tuple[str, Received]]:
    """Return requests that must be refused, each with what is wrong about it."""
    fine = good()
    one_blank = fine.body + b" "
    found = [
        ("a blank more", replace(fine, body=one_blank)),
        ("another mail", replace(fine, body=fine.body.replace(b"spot-trainer-01", b"spot-trainer-02"))),
        ("another secret", signed(MAIL, secret=bytes(range(1, 33)))),
        ("too old", signed(MAIL, at=int(NOW.timestamp()) - 301)),
        ("too new", signed(MAIL, at=int(NOW.timestamp()) + 301)),
    ]
    for name in ("webhook-id", "webhook-timestamp", "webhook-signature"):
        rest = {key: value for key, value in fine.headers.items() if key != name}
        found.append((f"no {name}", replace(fine, headers=rest)))
        found.append((f"another {name}", replace(fine, headers={**rest, name: fine.headers[name] + "0"})))
        found.append((f"{name} of 1 MB", replace(fine, headers={**rest, name: "v" * 1_000_000})))
        found.append((f"{name} of another script", replace(fine, headers={**rest, name: "٣é"})))
    return found
