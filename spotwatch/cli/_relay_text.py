# SPDX-License-Identifier: Apache-2.0
"""The document at a relay's `/status` as lines for people.

Any key may be missing or foreign, as with a daemon's. It asks nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spotwatch.masking import escape


def is_relay(document: Mapping[str, Any]) -> bool:
    """Tell whether a relay has answered, which watches nothing itself."""
    return document.get("relay") is True


def describe_relay(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that a person reads."""
    yield f"spotwatch {_text(document, 'spotwatch')}, the relay of a fleet".replace("  ", " ")
    reasons = document.get("not_ready")
    if isinstance(reasons, list) and reasons:
        yield "Not ready, a mail might not reach its Droplet:"
        yield from (f"  {escape(str(reason))}" for reason in reasons)
    else:
        yield "Ready: a mail would reach its Droplets"
    yield f"Droplets known: {_text(document, 'droplets') or '?'}"
    yield f"Letters that wait: {_text(document, 'outbox') or '?'}"
    yield f"Mailbox: {_text(document, 'mailbox') or '?'}"
    yield f"Listening for mail on: {_text(document, 'listen') or '?'}"


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    return escape(str(value)) if isinstance(value, str | int) else ""
