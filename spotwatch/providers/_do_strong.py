# SPDX-License-Identifier: Apache-2.0
"""The notice of what is proven: of all times said the earliest, and behind it those that were said as well.

A later time does not move the notice. It counts when the first one has been outlived, or was called off by a
message from before the one that says it; then it makes a notice of its own. So no proven mail is lost to the
one before it. What calls off, and when, is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from spotwatch.model import JSON, Evidence, from_rfc3339, to_rfc3339
from spotwatch.providers._do_slot import WEBHOOK, Claim, Slot, as_kept

OUTLIVED_AFTER = timedelta(seconds=630)
"""After a deadline: a case counts as survived ten minutes after it, and should have ended so by then."""
_MAX_CLAIMS = 8


class StrongSlot(Slot):
    """The notice that follows from proven claims."""

    evidence: ClassVar[Evidence] = Evidence.STRONG
    # These were alone once, and have kept their name.
    word: ClassVar[str] = "reclaim"

    def __init__(self) -> None:
        super().__init__()
        self._claims: tuple[Claim, ...] = ()
        """Of each time the newest claim, the earliest time first."""
        self._outlived: datetime | None = None
        """The last deadline that has passed without an end."""

    def put(self, claim: Claim, owner: int, *, supersedes: datetime | None = None) -> bool:
        """Take a notice, another time for it, or word that the Droplet goes all the same.

        Args:
            claim: of any event.
            owner: the Droplet's number.
            supersedes: what was said until then counts no more.

        Returns:
            Whether it says anything new.
        """
        if self._is_outlived(claim):
            return self._settle(self._said_after(supersedes), claim.received_at, owner)
        passed = None if self.notice is None else self.notice.deadline
        said = self._said_after(supersedes)
        if passed is not None and min(claim.signed_at, claim.deadline) > passed:
            # The Droplet is still there, and goes another time. What was done about those before is over.
            said = tuple(one for one in said if one.deadline >= claim.signed_at)
            self._outlived = passed
        return self._settle(_with(said, claim), claim.received_at, owner)

    def retract(self, moment: datetime, owner: int, *, now: datetime) -> bool:
        """Take back what was said until `moment`; tell whether that changes anything.

        What was said later stays in force, and with it the notice, where that says the same time.
        """
        return self._settle(self._said_after(moment), now, owner)

    def is_older_than(self, moment: datetime) -> bool:
        """Tell whether all that is in force was said before `moment`, or nothing is in force."""
        return all(one.signed_at <= moment for one in self._claims)

    def outlive(self, now: datetime, owner: int) -> bool:
        """Go on to the next time that was said, when the machine has outlived the first one."""
        left = tuple(one for one in self._claims if one.deadline + OUTLIVED_AFTER > now)
        if not left or left == self._claims:
            return False
        self._outlived = self._claims[len(self._claims) - len(left) - 1].deadline
        return self._settle(left, now, owner)

    def end(self) -> bool:
        """End the notice in force, whatever else was said, and tell whether there was one."""
        self._claims = ()
        return super().end()

    def to_json(self) -> dict[str, JSON]:
        """Return all of it as JSON types."""
        return {
            **super().to_json(),
            "outlived": None if self._outlived is None else to_rfc3339(self._outlived),
            "claims": [_to_json(one) for one in self._claims],
        }

    def load(self, row: Mapping[str, Any]) -> None:
        """Take over what `to_json` wrote, or an earlier version, which knew one claim only.

        Raises:
            KeyError, ValueError, TypeError, AttributeError: it is none.
        """
        super().load(row)
        outlived = row.get("outlived")
        self._outlived = None if outlived is None else from_rfc3339(outlived)
        known = self.notice
        if known is None or known.deadline is None:
            self._claims = ()
            return
        heard_at = row.get("heard_at")
        alone = Claim(
            event="reclaim",
            evidence=Evidence.STRONG,
            at=known.deadline,
            signed_at=from_rfc3339(heard_at) if heard_at else known.issued_at or known.seen_at,
            received_at=known.seen_at,
            signal=known.signal,
            detail=known.detail,
        )
        self._claims = tuple(_from_json(one) for one in row.get("claims", ()))[:_MAX_CLAIMS] or (alone,)

    def _said_after(self, moment: datetime | None) -> tuple[Claim, ...]:
        return tuple(one for one in self._claims if moment is None or one.signed_at > moment)

    def _is_outlived(self, claim: Claim) -> bool:
        """Tell whether a claim is of a time that the Droplet is known to have outlived."""
        if self._outlived is not None and claim.deadline <= min(self._outlived, claim.received_at):
            return True
        issued_at = None if self.notice is None else self.notice.issued_at
        return issued_at is not None and max(claim.signed_at, claim.deadline) < issued_at

    def _settle(self, claims: Sequence[Claim], now: datetime, owner: int) -> bool:
        """Let the notice follow from `claims`, and tell whether they say other times than before."""
        before = {one.deadline for one in self._claims}
        claims = tuple(sorted(claims, key=lambda one: one.deadline))
        known = self.notice
        if not claims:
            return self.end()
        first = claims[0]
        if known is None or known.deadline is None or first.deadline > known.deadline:
            # Only under another id can a time become a later one.
            self.end()
            # Seen now, if it was not in force until now.
            self.open(replace(first, received_at=now), owner, named_after=first.signed_at)
        elif first.deadline < known.deadline:
            self.notice = replace(known, deadline=first.deadline, detail=first.detail)
        self._claims = claims
        return before != {one.deadline for one in claims}


def _with(said: Sequence[Claim], claim: Claim) -> tuple[Claim, ...]:
    """Return the claims that count: of each time the newest, and of too many times not the longest said."""
    same = [one for one in said if one.deadline == claim.deadline]
    if any(one.signed_at >= claim.signed_at for one in same):
        return tuple(said)
    kept = replace(
        claim,
        event="reclaim",
        at=claim.deadline,
        signed_at=as_kept(claim.signed_at),
        received_at=as_kept(claim.received_at),
        message="",
    )
    claims = [*(one for one in said if one not in same), kept]
    if len(claims) > _MAX_CLAIMS:
        claims.sort(key=lambda one: one.deadline)
        claims.remove(min(claims[1:], key=lambda one: one.signed_at))
    return tuple(claims)


def _to_json(claim: Claim) -> dict[str, JSON]:
    return {
        "at": to_rfc3339(claim.deadline),
        "signed_at": to_rfc3339(claim.signed_at),
        "received_at": to_rfc3339(claim.received_at),
        "signal": claim.signal,
        "detail": claim.detail,
    }


def _from_json(row: Mapping[str, Any]) -> Claim:
    return Claim(
        event="reclaim",
        evidence=Evidence.STRONG,
        at=from_rfc3339(row["at"]),
        signed_at=from_rfc3339(row["signed_at"]),
        received_at=from_rfc3339(row["received_at"]),
        signal=str(row.get("signal", WEBHOOK)),
        detail=str(row["detail"]),
    )
