# SPDX-License-Identifier: Apache-2.0
"""Claims in minutes from a fixed moment, and an inbox to put them into.

It holds no test.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from spotwatch.model import Evidence, Notice
from spotwatch.providers._do_inbox import Inbox
from spotwatch.providers._do_slot import Claim

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
OURS = 512345678
STRONG, WEAK = Evidence.STRONG, Evidence.WEAK
Event = Literal["reclaim", "cancel", "correction"]


def minutes(count: float) -> datetime:
    """Return the moment `count` minutes from NOW."""
    return NOW + timedelta(minutes=count)


def claim(
    event: Event = "reclaim",
    evidence: Evidence = STRONG,
    *,
    at: float | None = 90,
    signed: float = 0,
    received: float | None = None,
    message: str = "",
) -> Claim:
    """Return a claim; its times are minutes from NOW."""
    return Claim(
        event=event,
        evidence=evidence,
        at=None if at is None else minutes(at),
        signed_at=minutes(signed),
        received_at=minutes(signed if received is None else received),
        detail=f"{event} {evidence}",
        message=message,
    )


def inbox(path: Path | None = None) -> Inbox:
    """Return an inbox of ours."""
    made = Inbox(path)
    made.belong_to(OURS)
    return made


def only(made: Inbox, evidence: Evidence) -> Notice | None:
    """Return the notice of one worth; None: there is none."""
    found = [notice for notice in made.notices if notice.evidence is evidence]
    assert len(found) <= 1
    return found[0] if found else None


def deadline(made: Inbox, evidence: Evidence = STRONG) -> float | None:
    """Return a deadline in minutes from NOW; None: there is no such notice."""
    notice = only(made, evidence)
    if notice is None:
        return None
    assert notice.deadline is not None
    return (notice.deadline - NOW) / timedelta(minutes=1)
