# SPDX-License-Identifier: Apache-2.0
"""What a relay tells its Droplets through a mailbox, to whom, and what of it is in force.

An object of the mailbox holds the proven letters to one address, each by itself, and the newest weak one,
which never displaces them. It is all that a Droplet sees, which may have read an older one or none, and
judges what the letters come to as it does with mails. It does not know how one is written, signed or sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from spotwatch.model import Evidence

EXPIRES_AFTER = timedelta(hours=6)
"""After the deadline: long enough for a Droplet that was off, and for nothing to be told of a later one."""

MAX_STRONG = 6
"""Proven letters of one object; of more the newest count, by the dates of their mails."""

LetterEvent = Literal["reclaim", "cancel", "correction"]

_PREFIX = "reclaims"


@dataclass(frozen=True, slots=True)
class Address:
    """For whom an object is: a Droplet by number, whoever has a name, or everybody."""

    droplet_id: int | None = None
    name_hash: str = ""

    @property
    def key(self) -> str:
        """Return the object's name in the mailbox."""
        if self.droplet_id is not None:
            return f"{_PREFIX}/{self.droplet_id}.json"
        return f"{_PREFIX}/by-name/{self.name_hash}.json" if self.name_hash else f"{_PREFIX}/broadcast.json"


BROADCAST = Address()
HEARTBEAT_KEY = f"{_PREFIX}/_heartbeat.json"


def address_of_name(name: str) -> Address:
    """Return the address of whoever is called `name`, in any case."""
    return Address(name_hash=hashlib.sha256(name.strip().casefold().encode()).hexdigest())


def message_of(key: str) -> str:
    """Return what tells messages apart in letters and notices.

    A hash: who reads the mailbox is not to learn more of the account's mail than concerns him.
    """
    return hashlib.sha256(key.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """What one notice means for one address."""

    to: Address
    event: LetterEvent
    """A correction is a reclaim whose `at` takes the place of the time said before."""
    at: datetime | None
    """When the Droplet goes, aware UTC; None for a cancel."""
    issued_at: datetime
    """The mail's own date: a cancel ends what was issued before it."""
    expires_at: datetime
    evidence: Evidence
    message: str = ""
    """By `message_of` what the mail is known by: the same for each copy of it."""
    detail: str = ""
    """One line for people."""
    letter_id: str = ""
    """Stable over each writing; empty: not signed yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The relay's sign of life."""

    at: datetime
    interval_seconds: float


def expiry(at: datetime | None, issued_at: datetime) -> datetime:
    """Return when a letter ends: six hours after its deadline."""
    return (issued_at + timedelta(hours=2) if at is None else at) + EXPIRES_AFTER


def join(known: Sequence[Letter], new: Letter, *, now: datetime) -> tuple[Letter, ...]:
    """Return what an object holds once `new` is told too, the oldest mail first and the weak letter last.

    Proven letters stand side by side: a second notice with a later time must outlive the first, and a cancel
    ends only what was written before it; that is for the Droplet to judge. What is weak has a date and a time
    that anybody may have written: of two such reclaims the one that came last counts, or else a forged one
    could keep all others from being heard.
    """
    kept = [one for one in known if one.expires_at > now]
    strong = [one for one in kept if one.evidence is Evidence.STRONG]
    weak = next((one for one in kept if one.evidence is Evidence.WEAK), None)
    if new.evidence is Evidence.WEAK:
        weak = new if weak is None else _newer_weak(weak, new)
    elif not any(_is_copy(one, new) for one in strong):
        strong.append(new)
    strong.sort(key=lambda one: one.issued_at)
    return (*strong[-MAX_STRONG:], *([] if weak is None else [weak]))


def _is_copy(one: Letter, other: Letter) -> bool:
    """Tell whether both are of one mail, whichever service brought it."""
    if one.message or other.message:
        return (one.event, one.message) == (other.event, other.message)
    return (one.event, one.at, one.issued_at) == (other.event, other.at, other.issued_at)


def _newer_weak(known: Letter, new: Letter) -> Letter:
    if "cancel" not in (known.event, new.event):
        is_same = bool(new.message) and _is_copy(known, new)
        return known if is_same else _changed(new, issued_at=max(new.issued_at, known.issued_at))
    return known if _is_copy(known, new) or new.issued_at < known.issued_at else new


def _changed(letter: Letter, **parts: Any) -> Letter:
    """Return `letter` with other parts; it is another one then, unless they are what they were."""
    made = replace(letter, **parts)
    return letter if made == letter else replace(made, letter_id="")
