# SPDX-License-Identifier: Apache-2.0
"""The notices that were pushed to this Droplet, kept over restarts until they are cancelled or long past.

A push is heard once, so what it said is level here. What is proven and what is not make two notices with ids
of their own: nothing unproven can move, end or hide what is proven. Of proven claims the earliest time is
right; a later one, under a new id, comes with a correction, or when the first time has passed. Times without
proof say nothing. A cancel or a correction takes back what was signed before it, and nothing else, in
whatever order they come. The state of another Droplet (a copied disk) is thrown away. It does not verify
signatures, nor decide whether a message concerns this Droplet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from spotwatch.errors import HandshakeError, Malformed
from spotwatch.kept_state import KeptState
from spotwatch.model import JSON, Evidence, Notice, from_rfc3339, to_rfc3339
from spotwatch.providers._do_message import read_id
from spotwatch.providers._do_slot import Claim
from spotwatch.providers._do_strong import StrongSlot
from spotwatch.providers._do_weak import LEAST_WEAK, WeakSlot

_VERSION = 2
# How far our clock and that of a mail's sender may differ.
_SKEW = timedelta(minutes=5)

Outcome = Literal["accepted", "duplicate", "refused"]


class Inbox:
    """What is in force for one Droplet.

    Args:
        path: the file that outlives a restart; None: memory only.
    """

    def __init__(self, path: Path | None) -> None:
        self._state = KeptState(path, self._to_bytes)
        self._owner = 0
        self._strong, self._weak = StrongSlot(), WeakSlot()
        self._superseded_at: datetime | None = None
        """What was signed before that proven cancel or correction does not count any more."""
        self._since: datetime | None = None
        """When this Droplet was first seen here; None: longer ago than this was kept."""
        try:
            self._load()
        except HandshakeError as error:
            self._state.problem = f"inbox unreadable, begun anew: {error}"

    @property
    def problem(self) -> str:
        """Return why the file could not be read or written; empty when it could."""
        return self._state.problem

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Return the notices in force, the proven one first."""
        return tuple(slot.notice for slot in (self._strong, self._weak) if slot.notice is not None)

    @property
    def ended(self) -> frozenset[str]:
        """Return the ids of the last notices that were cancelled, replaced or are long past."""
        return frozenset((*self._strong.ended, *self._weak.ended))

    def belong_to(self, droplet_id: int, *, since: datetime | None = None) -> None:
        """Say whose inbox this is, since when; what was kept for another Droplet is thrown away."""
        if self._owner != droplet_id:
            self._owner, self._superseded_at, self._since = droplet_id, None, since
            self._strong, self._weak = StrongSlot(), WeakSlot()
            self._state.changed()

    def take(self, claim: Claim) -> Outcome:
        """Take what was said.

        Returns:
            accepted: something has changed. duplicate: it says nothing new, or is overtaken. refused: an
            unproven cancel of a proven notice, or of one that has just come.
        """
        if self._superseded_at is not None and claim.signed_at < self._superseded_at:
            return "duplicate"
        self._state.changed()
        if claim.evidence is Evidence.WEAK:
            return self._take_weak(claim)
        if claim.event == "cancel":
            has_changed = self._cancel(claim)
        elif claim.event == "correction":
            has_changed = self._correct(claim)
        else:
            has_changed = self._strong.put(claim, self._owner)
        return "accepted" if has_changed else "duplicate"

    def is_before_us(self, moment: datetime, *, booted_at: datetime) -> bool:
        """Tell whether `moment` lies before this boot, and before all that is known of this Droplet.

        What was signed then may be about the one that had its name or address before.
        """
        return self._since is not None and moment < min(self._since, booted_at) - _SKEW

    def expire(self, now: datetime) -> None:
        """Let go of a notice an hour after its deadline, or after it came, if it came late.

        Where another time was said as well, that one follows as soon as the first is outlived.
        """
        # All of them: a short-circuit would leave one.
        if any([self._strong.outlive(now, self._owner), self._strong.expire(now), self._weak.expire(now)]):
            self._state.changed()

    def save(self) -> bool:
        """Write what has changed; tell whether all is on disk, or none is wanted there.

        May run in a thread beside other calls, but only one at a time.
        """
        return self._state.save()

    def _take_weak(self, claim: Claim) -> Outcome:
        if claim.event != "cancel":
            return "accepted" if self._weak.put(claim, self._owner) else "duplicate"
        weak = self._weak.notice
        if weak is not None and claim.received_at < weak.seen_at + LEAST_WEAK:
            return "refused"
        has_ended = self._weak.is_older_than(claim.signed_at) and self._weak.end()
        if self._strong.notice is not None:
            return "refused"
        return "accepted" if has_ended else "duplicate"

    def _cancel(self, claim: Claim) -> bool:
        is_overtaken = not self._strong.is_older_than(claim.signed_at)
        is_new = self._take_back_until(claim.signed_at)
        has_changed = self._strong.retract(claim.signed_at, self._owner, now=claim.received_at)
        if self._weak.is_older_than(claim.signed_at):
            has_changed |= self._weak.end()
        return has_changed or (is_new and not is_overtaken)

    def _correct(self, claim: Claim) -> bool:
        is_newest = self._strong.is_older_than(claim.signed_at)
        if claim.at is None:
            # It names no time that could take the place of the one in force.
            if is_newest:
                self._take_back_until(claim.signed_at)
            return self._strong.put(claim, self._owner)
        self._take_back_until(claim.signed_at)
        return self._strong.put(claim, self._owner, supersedes=claim.signed_at)

    def _take_back_until(self, moment: datetime) -> bool:
        """Let nothing count any more that was signed before `moment`; tell whether that is new."""
        if self._superseded_at is not None and moment <= self._superseded_at:
            return False
        self._superseded_at = moment
        return True

    def _to_bytes(self) -> bytes:
        at = self._superseded_at
        row: dict[str, JSON] = {
            "version": _VERSION,
            "droplet_id": self._owner,
            "superseded_at": None if at is None else to_rfc3339(at),
            "since": None if self._since is None else to_rfc3339(self._since),
            "strong": self._strong.to_json(),
            "weak": self._weak.to_json(),
        }
        return json.dumps(row).encode()

    def _load(self) -> None:
        body = self._state.read()
        if body is None:
            return
        try:
            row = _upgraded(json.loads(body))
            owner = read_id(row["droplet_id"]) or 0
            at = row["superseded_at"]
            superseded_at = None if at is None else from_rfc3339(at)
            since = None if row.get("since") is None else from_rfc3339(row["since"])
            strong, weak = StrongSlot(), WeakSlot()
            strong.load(row["strong"])
            weak.load(row["weak"])
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            OverflowError,
            RecursionError,
            Malformed,
        ) as error:
            raise HandshakeError(f"{self._state.path}: {type(error).__name__}") from error
        self._owner, self._superseded_at, self._since = owner, superseded_at, since
        self._strong, self._weak = strong, weak


def _upgraded(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `row` in the form of today; before version 2 there was one notice, of either worth."""
    if row["version"] == _VERSION:
        return row
    if row["version"] != 1:
        raise ValueError("another version")
    notice, none = row["notice"], {"notice": None, "heard_at": None, "ended": ()}
    upgraded = {
        "droplet_id": row["droplet_id"],
        "superseded_at": row["cancelled_at"],
        "strong": {**none, "ended": row["ended"]},
        "weak": none,
    }
    if notice is not None and notice["evidence"] == Evidence.WEAK:
        # Under its old name, which strong ones have now, it ends.
        renamed = {**notice, "id": notice["id"].replace(":reclaim:", ":weak:")}
        upgraded["weak"] = {"notice": renamed, "heard_at": notice["issued_at"], "ended": [notice["id"]]}
    elif notice is not None:
        upgraded["strong"] |= {"notice": notice, "heard_at": notice["issued_at"]}
    return upgraded
