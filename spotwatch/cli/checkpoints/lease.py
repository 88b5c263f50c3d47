# SPDX-License-Identifier: Apache-2.0
"""Who has a run, for people and programs, and whether its trainer shows a sign of life.

It takes no lease, and compares no moment that another machine wrote down with a clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from spotwatch.cli._words import span
from spotwatch.errors import CheckpointCorrupt
from spotwatch.masking import escape
from spotwatch.train.lease import lease
from spotwatch.train.lease.form import Claim
from spotwatch.train.lease.history import LOST, History
from spotwatch.train.lease.owner import Owner
from spotwatch.train.lease.slot import Slot
from spotwatch.train.lease.wait import Watch
from spotwatch.train.store import Store

_UNREADABLE_TTL_SECONDS = 60.0
_POLLS_PER_TTL = 12
_MOST_POLL_SECONDS = 5.0


def read(store: Store) -> tuple[Claim | None, str]:
    """Return the lease, and what is wrong with it; None and "" when there is none.

    Raises:
        StoreError: the store refuses.
    """
    try:
        return lease.read(store), ""
    except CheckpointCorrupt as error:
        return None, str(error)


def state_of(claim: Claim | None, problem: str) -> str:
    """Return `none`, `free`, `gone` (its process has certainly ended), `held` (it may be) or `unreadable`."""
    if claim is None:
        return "unreadable" if problem else "none"
    if claim.released:
        return "free"
    return "gone" if Owner.here().knows_gone(claim.owner) else "held"


def document(claim: Claim | None, problem: str) -> dict[str, Any]:
    """Return what a program is told of the lease."""
    shown: dict[str, Any] = {"state": state_of(claim, problem), "problem": problem}
    if claim is not None:
        shown |= {
            "host": claim.owner.host,
            "pid": claim.owner.pid,
            "writer": claim.owner.writer,
            "generation": claim.generation,
            "taken_at": claim.taken_at,
            "renewed_at": claim.renewed_at,
            "ttl_seconds": claim.ttl_seconds,
            "lived_seconds": claim.lived_seconds,
            "released": claim.released,
        }
    return shown


def line(shown: Mapping[str, Any]) -> str:
    """Return the line for people of what `document` returns."""
    if shown["state"] == "none":
        return "Lease: none"
    if shown["state"] == "unreadable":
        return f"Lease: unreadable - {escape(shown['problem'])}"
    who = f"{escape(shown['host'])}, pid {shown['pid']}"
    lived = span(shown["lived_seconds"])
    if shown["state"] == "free":
        return f"Lease: free; {who} had it for {lived} and has {shown['released']}"
    if shown["state"] == "gone":
        return f"Lease: {who} had it for {lived} and is gone without a word"
    return (
        f"Lease: {who}, since {escape(shown['taken_at'])}, renewed {escape(shown['renewed_at'])} by its clock"
    )


def is_alive(
    store: Store,
    *,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = lease.boot_seconds,
) -> bool:
    """Look at the lease until it changes, or until it may be taken over, which needs up to its TTL.

    Raises:
        StoreError: the store refuses.
    """
    slot = Slot(store)
    watch = Watch(Owner.here(), _UNREADABLE_TTL_SECONDS)
    first = slot.look().body
    body = first
    while body == first:
        asked_at = monotonic()
        body = slot.look().body
        watch.see(body, asked_at, monotonic())
        if watch.may_take:
            return False
        sleep(min(watch.ttl_seconds / _POLLS_PER_TTL, _MOST_POLL_SECONDS))
    return True


def history(claim: Claim | None, problem: str) -> History:
    """Return how each life of the run ended, the last one included; one that may go on has ended as "".

    A life lasted until its last sign; what came after is not known.
    """
    if claim is None:
        return History()
    return claim.lives(unsaid=LOST if state_of(claim, problem) == "gone" else "")
