# SPDX-License-Identifier: Apache-2.0
"""What a push says, and how well it is proven that it says so of this Droplet.

It does not verify a signature, and keeps nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from spotwatch.errors import Malformed
from spotwatch.model import to_rfc3339
from spotwatch.providers._do_identity import MAX_ID, Known
from spotwatch.untrusted import printable, read_moment, read_object, read_text

Bearing = Literal["strong", "weak", "not_mine", "unknown"]
"""Whether a message bears on this Droplet: by proof, perhaps, not, or not to be told yet."""

_MAX_NAME_CHARS = 255
_MAX_ID_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One verified push."""

    event: Literal["reclaim", "cancel"]
    droplet_id: int | None
    name: str
    """Empty: the message names none."""
    at: datetime | None
    signed_at: datetime
    received_at: datetime

    @property
    def subject(self) -> str:
        """Return what the message names, for people."""
        if self.droplet_id is not None:
            return f"Droplet {self.droplet_id}"
        return f"name {printable(self.name, 100)}" if self.name else "no machine"


def parse(body: bytes, *, signed_at: datetime, received_at: datetime, max_age_seconds: float) -> Message:
    """Return the message in `{"event": "reclaim"|"cancel", "droplet_id" and/or "name", "at"}`.

    Unknown keys are ignored; a later sender may say more.

    Args:
        body: JSON.
        signed_at: aware.
        received_at: aware.
        max_age_seconds: how long before its signature the time in it may lie.

    Raises:
        Malformed: it is none.
    """
    row = read_object(body)
    event = read_text(row, "event")
    if event not in ("reclaim", "cancel"):
        raise Malformed(f"'event' is {printable(event, 40)!r}; send reclaim or cancel", body=body)
    name = read_text(row, "name")
    if len(name) > _MAX_NAME_CHARS:
        raise Malformed(f"'name' has {len(name)} characters", body=body)
    at = read_moment(row, "at")
    if at is not None and signed_at - at > timedelta(seconds=max_age_seconds):
        # A stop at once for what is long past is nobody's wish; a year that was mistyped, rather.
        too_old = f"more than mail.max_age_seconds, {max_age_seconds:g}, before the signature"
        raise Malformed(f"'at' is {to_rfc3339(at)}, {too_old}", body=body)
    return Message(
        event="reclaim" if event == "reclaim" else "cancel",
        droplet_id=read_id(row.get("droplet_id")),
        name=name,
        at=at,
        signed_at=signed_at,
        received_at=received_at,
    )


def bearing(message: Message, known: Known) -> Bearing:
    """Compare a verified message with what is known of this Droplet.

    Returns:
        strong: it names our number, or a name that is ours alone. weak: it names our hostname, which another
        Droplet may have as well; or our number with another's name; or no machine at all.
    """
    if known.droplet_id is None:
        return "unknown"
    if message.droplet_id is not None:
        if message.droplet_id != known.droplet_id:
            return "not_mine"
        contradicts = message.name and _named(message.name, known) == "not_mine"
        return "weak" if contradicts else "strong"
    return _named(message.name, known) if message.name else "weak"


def _named(name: str, known: Known) -> Bearing:
    """Compare whole names, in any case: `spot-1` is not `spot-10`."""
    if name.casefold() in known.names:
        return "strong"
    if known.identity is None or not known.identity.hostname:
        return "unknown"
    return "weak" if name.casefold() == known.identity.hostname.casefold() else "not_mine"


def read_id(value: Any) -> int | None:
    """Return a Droplet's id, a number or its digits; None when there is none.

    Raises:
        Malformed: it is something else.
    """
    if value is None:
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _MAX_ID_DIGITS:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_ID:
        raise Malformed(f"'droplet_id' is {printable(str(value)[:40], 40)!r}; send the Droplet's number")
    return value
