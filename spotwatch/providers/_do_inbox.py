# SPDX-License-Identifier: Apache-2.0
"""The notice that was pushed to this Droplet, kept over restarts until it is cancelled or long past.

A push is heard once, so what it said is level here: the earliest time counts, a cancel counts when it was
signed after the notice, and the state of another Droplet (a copied disk) is thrown away. It does not verify
signatures, nor decide whether a message concerns this Droplet.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from spotwatch.errors import HandshakeError, Malformed
from spotwatch.model import JSON, Certainty, Evidence, Kind, Notice, from_rfc3339, to_rfc3339
from spotwatch.providers._do_message import Message, read_id
from spotwatch.safe_files import read_small_file, write_atomically

PROVIDER_NAME = "digitalocean"
SIGNAL = "webhook"
# "Two hours is a target" (DigitalOcean's tutorial on spot GPU Droplets, September 2026).
WINDOW_SECONDS = 7200.0
KEPT_AFTER_DEADLINE = timedelta(hours=1)

_VERSION = 1
_MAX_ENDED = 16

Outcome = Literal["accepted", "duplicate", "refused"]


class Inbox:
    """What is in force for one Droplet.

    Args:
        path: the file that outlives a restart; None: memory only.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._owner = 0
        self._changes = 0
        self._saved_changes = 0
        self._cancelled_at: datetime | None = None
        self.notice: Notice | None = None
        self.ended: tuple[str, ...] = ()
        """Ids of notices that were cancelled or are long past, the newest last."""
        self.problem = ""
        """Why the file could not be read or written; empty when it could."""
        try:
            self._load()
        except HandshakeError as error:
            self.problem = f"inbox unreadable, begun anew: {error}"

    def claim(self, droplet_id: int) -> None:
        """Say whose inbox this is; what was kept for another Droplet is thrown away."""
        if self._owner == droplet_id:
            return
        self._owner = droplet_id
        self.notice, self.ended, self._cancelled_at = None, (), None
        self._changes += 1

    def reclaim(self, message: Message, evidence: Evidence, detail: str) -> Outcome:
        """Take a notice, or an earlier time or a better proof of the one in force."""
        if self._cancelled_at is not None and message.signed_at < self._cancelled_at:
            return "duplicate"
        latest = message.received_at + timedelta(seconds=WINDOW_SECONDS)
        deadline = _as_kept(latest if message.at is None else min(message.at, latest))
        known = self.notice
        if known is None or known.deadline is None:
            self.notice = Notice(
                id=self._new_id(message.signed_at),
                provider=PROVIDER_NAME,
                signal=SIGNAL,
                kind=Kind.RECLAIM,
                seen_at=_as_kept(message.received_at),
                deadline=deadline,
                certainty=Certainty.TARGET,
                window_seconds=WINDOW_SECONDS,
                # "Are destroyed on reclaim" (the same tutorial, quoting the preview's terms).
                is_final=True,
                issued_at=message.signed_at,
                evidence=evidence,
                detail=detail,
            )
        else:
            is_stronger = evidence is Evidence.STRONG and known.evidence is Evidence.WEAK
            better = replace(
                known,
                deadline=min(known.deadline, deadline),
                evidence=evidence if is_stronger else known.evidence,
                detail=detail if is_stronger else known.detail,
            )
            if better == known:
                return "duplicate"
            self.notice = better
        self._changes += 1
        return "accepted"

    def cancel(self, message: Message, evidence: Evidence) -> Outcome:
        """End the notice in force, unless the cancel is older or worse proven than it."""
        known = self.notice
        if known is not None and evidence is Evidence.WEAK and known.evidence is Evidence.STRONG:
            return "refused"
        if known is not None and known.issued_at is not None and message.signed_at < known.issued_at:
            return "duplicate"
        if evidence is Evidence.STRONG:
            self._cancelled_at = max(self._cancelled_at or message.signed_at, message.signed_at)
        self._end()
        self._changes += 1
        return "accepted"

    def expire(self, now: datetime) -> None:
        """Let go of a notice an hour after its deadline, or after it came, if it came late."""
        known = self.notice
        if known is None or known.deadline is None:
            return
        if now >= max(known.deadline, known.seen_at) + KEPT_AFTER_DEADLINE:
            self._end()
            self._changes += 1

    def save(self) -> bool:
        """Write what has changed; tell whether all is on disk, or none is wanted there.

        May run in a thread beside other calls, but only one at a time.
        """
        if self._path is None or self._saved_changes == self._changes:
            return True
        changes, body = self._changes, self._to_bytes()
        try:
            write_atomically(self._path, body, mode=0o600)
        except HandshakeError as error:
            self.problem = str(error)
            return False
        self._saved_changes = changes
        self.problem = ""
        return True

    def _end(self) -> None:
        if self.notice is not None:
            self.ended = (*self.ended, self.notice.id)[-_MAX_ENDED:]
            self.notice = None

    def _new_id(self, signed_at: datetime) -> str:
        """Return an id of this event: a reclaim after a cancel is another one, even in the same second."""
        second = int(signed_at.timestamp())
        while (made := f"{PROVIDER_NAME}:{self._owner}:reclaim:{second}") in self.ended:
            second += 1
        return made

    def _to_bytes(self) -> bytes:
        row: dict[str, JSON] = {
            "version": _VERSION,
            "droplet_id": self._owner,
            "notice": None if self.notice is None else self.notice.to_json(),
            "ended": list(self.ended),
            "cancelled_at": None if self._cancelled_at is None else to_rfc3339(self._cancelled_at),
        }
        return json.dumps(row).encode()

    def _load(self) -> None:
        body = None if self._path is None else read_small_file(self._path)
        if body is None:
            return
        try:
            row = json.loads(body)
            if row["version"] != _VERSION:
                raise ValueError("another version")
            owner = read_id(row["droplet_id"]) or 0
            notice = None if row["notice"] is None else Notice.from_json(row["notice"])
            ended = tuple(str(one) for one in row["ended"])[-_MAX_ENDED:]
            at = row["cancelled_at"]
            cancelled_at = None if at is None else from_rfc3339(at)
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            OverflowError,
            RecursionError,
            Malformed,
        ) as error:
            raise HandshakeError(f"{self._path}: {type(error).__name__}") from error
        self._owner, self.notice, self.ended, self._cancelled_at = owner, notice, ended, cancelled_at


def _as_kept(moment: datetime) -> datetime:
    """Return `moment` as the file gives it back: what a restart changes would be a new time."""
    return from_rfc3339(to_rfc3339(moment))
