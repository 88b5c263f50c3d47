# SPDX-License-Identifier: Apache-2.0
"""What a relay tells its Droplets through a mailbox, to whom, and what of it is in force.

An object of the mailbox states what is in force for one address: the newest letter of each kind of evidence,
so that a weak one never displaces a strong one. It is all that a Droplet sees, which may have read an older
one or none: so a letter says, too, what those before it have called off. It does not know how a letter is
written, signed or sent.
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
    superseded_at: datetime | None = None
    """Of a reclaim: what was issued until then was called off or corrected; None: nothing was."""
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
    """Return what is in force once `new` is told too: at most one letter of each kind of evidence.

    The newest counts, by the date of its mail. Among reclaims the earliest time does, but for a correction,
    and for a mail written after that time had passed: then the Droplet is still there, and goes another time.
    What is weak has a date and a time that anybody may have written: of two such reclaims the one that came
    last counts, or else a forged one could keep all others from being heard.
    """
    kept = [one for one in known if one.expires_at > now]
    rival = next((one for one in kept if one.evidence is new.evidence), None)
    others = tuple(one for one in kept if one.evidence is not new.evidence)
    return (*others, new if rival is None else _joined(rival, new))


def _joined(known: Letter, new: Letter) -> Letter:
    is_same = bool(new.message) and new.message == known.message and new.event == known.event
    if new.evidence is Evidence.WEAK and "cancel" not in (known.event, new.event):
        return known if is_same else _changed(new, issued_at=max(new.issued_at, known.issued_at))
    if is_same or new.issued_at < known.issued_at:
        earlier, later = new, known
    else:
        earlier, later = known, new
    if later.event != "reclaim":
        return later
    ends = [letter.superseded_at for letter in (earlier, later) if letter.superseded_at is not None]
    if earlier.event != "reclaim":
        ends.append(earlier.issued_at)
    at = later.at
    if later.superseded_at is not None and earlier.issued_at <= later.superseded_at:
        # A second copy of what was called off, late and by another way, says nothing of what came after.
        return later
    if earlier.event != "cancel" and earlier.at is not None and at is not None:
        at = at if later.issued_at > earlier.at else min(earlier.at, at)
    # A later expiry than needed is harmless; an earlier one could end a notice that is in force.
    return _changed(later, at=at, superseded_at=max(ends, default=None))


def _changed(letter: Letter, **parts: Any) -> Letter:
    """Return `letter` with other parts; it is another one then, unless they are what they were."""
    made = replace(letter, **parts)
    return letter if made == letter else replace(made, letter_id="")
