# SPDX-License-Identifier: Apache-2.0
"""What was said of this Droplet, and the one notice that follows from all that is of the same worth.

What makes a notice, and what ends one, differs between what is proven and what is not: each has a module of
its own. Nothing here compares the two, or keeps a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal

from spotwatch.model import JSON, Certainty, Evidence, Kind, Notice, from_rfc3339, to_rfc3339

PROVIDER_NAME = "digitalocean"
WEBHOOK = "webhook"
MAILBOX = "mailbox"
# "Two hours is a target" (DigitalOcean's tutorial on spot GPU Droplets, September 2026).
WINDOW_SECONDS = 7200.0
KEPT_AFTER_DEADLINE = timedelta(hours=1)

_MAX_ENDED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one push, mail or letter says of this Droplet."""

    event: Literal["reclaim", "cancel", "correction"]
    evidence: Evidence
    at: datetime | None
    """When the Droplet goes; None: it does not say."""
    signed_at: datetime
    received_at: datetime
    signal: str = WEBHOOK
    detail: str = ""
    message: str = ""
    """What the message is known by, however often and by whichever way it comes; empty: by nothing."""

    @property
    def deadline(self) -> datetime:
        """Return when the Droplet goes, at most two hours from when this came."""
        latest = self.received_at + timedelta(seconds=WINDOW_SECONDS)
        return as_kept(latest if self.at is None else min(self.at, latest))


class Slot:
    """The notice that follows from claims of one worth, and the ids of those before it."""

    evidence: ClassVar[Evidence]
    word: ClassVar[str]
    """What a notice is called in its id."""

    def __init__(self) -> None:
        self.notice: Notice | None = None
        self.ended: tuple[str, ...] = ()
        """Ids of notices that were cancelled, replaced or are long past, the newest last."""

    def end(self) -> bool:
        """End the notice in force, and tell whether there was one."""
        if self.notice is None:
            return False
        self.ended = (*self.ended, self.notice.id)[-_MAX_ENDED:]
        self.notice = None
        return True

    def expire(self, now: datetime) -> bool:
        """End a notice an hour after its deadline, or after it came, if it came late."""
        known = self.notice
        if known is None or known.deadline is None:
            return False
        return now >= max(known.deadline, known.seen_at) + KEPT_AFTER_DEADLINE and self.end()

    def to_json(self) -> dict[str, JSON]:
        """Return all of it as JSON types."""
        return {
            "notice": None if self.notice is None else self.notice.to_json(),
            "ended": list(self.ended),
        }

    def load(self, row: Mapping[str, Any]) -> None:
        """Take over what `to_json` wrote.

        Raises:
            KeyError, ValueError, TypeError, AttributeError: it is none.
        """
        self.notice = None if row["notice"] is None else Notice.from_json(row["notice"])
        self.ended = tuple(str(one) for one in row["ended"])[-_MAX_ENDED:]

    def open(self, claim: Claim, owner: int, *, named_after: datetime) -> None:
        """Make a notice of a claim, under an id that none has had.

        Args:
            claim: what is said.
            owner: the Droplet's number.
            named_after: the moment in its id.
        """
        self.notice = Notice(
            id=self._new_id(owner, int(named_after.timestamp())),
            provider=PROVIDER_NAME,
            signal=claim.signal,
            kind=Kind.RECLAIM,
            seen_at=as_kept(claim.received_at),
            deadline=claim.deadline,
            certainty=Certainty.TARGET,
            window_seconds=WINDOW_SECONDS,
            # "Are destroyed on reclaim" (the same tutorial, quoting the preview's terms).
            is_final=True,
            issued_at=as_kept(claim.signed_at),
            evidence=self.evidence,
            detail=claim.detail,
        )

    def _new_id(self, owner: int, second: int) -> str:
        """Return an id of this event: a reclaim after a cancel is another one, even in the same second."""
        while (made := f"{PROVIDER_NAME}:{owner}:{self.word}:{second}") in self.ended:
            second += 1
        return made


def as_kept(moment: datetime) -> datetime:
    """Return `moment` as the file gives it back: what a restart changes would be a new time."""
    return from_rfc3339(to_rfc3339(moment))
