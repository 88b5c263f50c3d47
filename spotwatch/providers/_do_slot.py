# SPDX-License-Identifier: Apache-2.0
"""What was said of this Droplet, and the one notice that follows from all that is of the same worth.

It does not compare what is proven with what is not, and keeps no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, Self

from spotwatch.model import JSON, Certainty, Evidence, Kind, Notice, from_rfc3339, to_rfc3339

PROVIDER_NAME = "digitalocean"
WEBHOOK = "webhook"
MAILBOX = "mailbox"
# "Two hours is a target" (DigitalOcean's tutorial on spot GPU Droplets, September 2026).
WINDOW_SECONDS = 7200.0
KEPT_AFTER_DEADLINE = timedelta(hours=1)
LEAST_WEAK = timedelta(seconds=600)
"""Between the beginnings of two weak notices: each is flushed, and who forges mail must not make a trainer
save more often."""

_MAX_ENDED = 16
_MAX_HEARD = 64
# What a notice is called in its id. Strong ones were alone once, and have kept their name.
_WORDS = {Evidence.STRONG: "reclaim", Evidence.WEAK: "weak"}


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
    superseded_at: datetime | None = None
    """What was signed until then was called off or corrected before this was said; None: nothing was."""

    @property
    def deadline(self) -> datetime:
        """Return when the Droplet goes, at most two hours from when this came."""
        latest = self.received_at + timedelta(seconds=WINDOW_SECONDS)
        return _as_kept(latest if self.at is None else min(self.at, latest))


class Slot:
    """The notice that follows from claims of one worth.

    Args:
        evidence: theirs.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self.notice: Notice | None = None
        self.heard_at: datetime | None = None
        """When the newest claim of the notice in force was signed."""
        self.ended: tuple[str, ...] = ()
        """Ids of notices that were cancelled, replaced or are long past, the newest last."""
        self._heard: tuple[str, ...] = ()
        """Messages that have opened a weak notice, the newest last."""

    def put(self, claim: Claim, owner: int) -> bool:
        """Take a notice, or an earlier time for the one in force; tell whether it says anything new.

        A weak one's times say nothing: neither may a forged mail keep later ones from being heard.
        """
        if self._evidence is Evidence.WEAK:
            return self._put_weak(claim, owner)
        known = self.notice
        if known is None or known.deadline is None:
            self._open(claim, owner)
            return True
        if claim.signed_at > known.deadline and claim.deadline > known.deadline:
            # The Droplet is still there, and goes another time. What was done about the first one is over.
            self.renew(claim, owner)
            return True
        if self.heard_at is None or claim.signed_at > self.heard_at:
            self.heard_at = claim.signed_at
        is_outlived = known.issued_at is not None and max(claim.signed_at, claim.deadline) < known.issued_at
        if claim.deadline >= known.deadline or is_outlived:
            return False
        self.notice = replace(known, deadline=claim.deadline, detail=claim.detail)
        return True

    def _put_weak(self, claim: Claim, owner: int) -> bool:
        """Open another notice for each message, but not more often than every ten minutes."""
        if claim.message and claim.message in self._heard:
            return False
        # Its date may be anything; when it came is certain.
        signed_at = min(claim.signed_at, claim.received_at)
        known = self.notice
        # Either way: a clock that was set back must not keep the next one waiting for longer.
        if known is not None and abs(claim.received_at - known.seen_at) < LEAST_WEAK:
            if self.heard_at is None or signed_at > self.heard_at:
                self.heard_at = signed_at
            return False
        heard_at = max(signed_at, self.heard_at or signed_at)
        self.renew(replace(claim, at=None, signed_at=signed_at), owner)
        self.heard_at = heard_at
        if claim.message:
            self._heard = (*self._heard, claim.message)[-_MAX_HEARD:]
        return True

    def renew(self, claim: Claim, owner: int) -> None:
        """End the notice in force, and open another one: only so can its time become a later one."""
        self.end()
        self._open(claim, owner)

    def is_older_than(self, moment: datetime) -> bool:
        """Tell whether all that is in force was said before `moment`, or nothing is in force."""
        return self.heard_at is None or self.heard_at <= moment

    def end(self) -> bool:
        """End the notice in force, and tell whether there was one."""
        if self.notice is None:
            return False
        self.ended = (*self.ended, self.notice.id)[-_MAX_ENDED:]
        self.notice = self.heard_at = None
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
            "heard_at": None if self.heard_at is None else to_rfc3339(self.heard_at),
            "ended": list(self.ended),
            "heard": list(self._heard),
        }

    @classmethod
    def from_json(cls, evidence: Evidence, row: Mapping[str, Any]) -> Self:
        """Return the slot that `to_json` wrote.

        Raises:
            KeyError, ValueError, TypeError, AttributeError: it is none.
        """
        made = cls(evidence)
        made.notice = None if row["notice"] is None else Notice.from_json(row["notice"])
        made.heard_at = None if row["heard_at"] is None else from_rfc3339(row["heard_at"])
        made.ended = tuple(str(one) for one in row["ended"])[-_MAX_ENDED:]
        made._heard = tuple(str(one) for one in row.get("heard", ()))[-_MAX_HEARD:]
        return made

    def _open(self, claim: Claim, owner: int) -> None:
        self.heard_at = claim.signed_at
        self.notice = Notice(
            id=self._new_id(claim, owner),
            provider=PROVIDER_NAME,
            signal=claim.signal,
            kind=Kind.RECLAIM,
            seen_at=_as_kept(claim.received_at),
            deadline=claim.deadline,
            certainty=Certainty.TARGET,
            window_seconds=WINDOW_SECONDS,
            # "Are destroyed on reclaim" (the same tutorial, quoting the preview's terms).
            is_final=True,
            issued_at=_as_kept(claim.signed_at),
            evidence=self._evidence,
            detail=claim.detail,
        )

    def _new_id(self, claim: Claim, owner: int) -> str:
        """Return an id of this event: a reclaim after a cancel is another one, even in the same second."""
        # A date that anybody can write could be that of a notice long forgotten here, and closed elsewhere.
        is_weak = self._evidence is Evidence.WEAK
        second = int((claim.received_at if is_weak else claim.signed_at).timestamp())
        while (made := f"{PROVIDER_NAME}:{owner}:{_WORDS[self._evidence]}:{second}") in self.ended:
            second += 1
        return made


def _as_kept(moment: datetime) -> datetime:
    """Return `moment` as the file gives it back: what a restart changes would be a new time."""
    return from_rfc3339(to_rfc3339(moment))
