# SPDX-License-Identifier: Apache-2.0
"""What the bodies of EC2's metadata paths mean, signal by signal; pure functions over bytes.

They fail safe: what is clearly a notice but half unreadable stays a notice, without a time. They fetch
nothing, and whether a notice is new, stale or withdrawn is not decided here.

Sources: Amazon EC2 user guide, "Spot Instance interruption notices" (read 2026) and "EC2 instance rebalance
recommendations" (edition of 2023); Amazon EC2 Auto Scaling user guide, "Retrieve the target lifecycle state
through instance metadata".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime

from spotwatch.errors import Malformed
from spotwatch.model import Certainty, Kind, Notice
from spotwatch.providers._aws_events import SCHEDULED_EVENTS, scheduled_events
from spotwatch.providers._aws_fields import MAX_TEXT, Parsed, as_json, as_text, moment, short

INSTANCE_ACTION = "instance-action"
TERMINATION_TIME = "termination-time"
REBALANCE = "rebalance"
ASG = "asg"

# "two minutes before": the interruption notice, on a best-effort basis.
WINDOW_SECONDS = 120.0
# The longest that a lifecycle hook may hold an instance: 48 hours.
HOOK_WINDOW_SECONDS = 48 * 3600.0

_INTERRUPTION_ID = "aws:instance-action"
_REBALANCE_ID = "aws:rebalance"
_ASG_ID = "aws:asg"

_OTHER_STATES = frozenset({"Detached", "InService", "Standby"})


def parse(signal: str, body: bytes, *, seen_at: datetime) -> Parsed:
    """Return what the body of a 200 answer says.

    Args:
        signal: which path it came from.
        body: as received.
        seen_at: aware UTC.
    """
    try:
        return _PARSERS[signal](body, seen_at)
    except Malformed as problem:
        return Parsed(problem=problem)


def _instance_action(body: bytes, seen_at: datetime) -> Parsed:
    row = as_json(body)
    if not isinstance(row, dict):
        raise Malformed(f"{INSTANCE_ACTION}: expected an object, got {short(row)}", body=body)
    action, at = row.get("action"), moment(row.get("time"))
    if at is None and not (isinstance(action, str) and action.strip()):
        raise Malformed(f"{INSTANCE_ACTION}: neither 'action' nor 'time' in {short(row)}", body=body)
    known = action.strip().lower() if isinstance(action, str) else ""
    if known == "hibernate":
        # "you do not receive a two-minute warning because the hibernation process begins immediately"
        return _one(
            Notice(
                id=_INTERRUPTION_ID,
                provider="aws",
                signal=INSTANCE_ACTION,
                kind=Kind.HIBERNATE,
                seen_at=seen_at,
                certainty=Certainty.ESTIMATE,
                ends_machine=False,
                detail="spot interruption: hibernate, beginning now",
            )
        )
    is_known = known in ("terminate", "stop")
    detail = (
        f"spot interruption: {known}" if is_known else f"spot interruption, unknown action {short(action)}"
    )
    if at is None:
        detail += f", unreadable time {short(row.get('time'))}"
    return _one(
        _interruption(
            INSTANCE_ACTION,
            seen_at,
            deadline=at,
            is_exact=is_known and at is not None,
            is_final=known == "terminate",
            detail=detail,
        )
    )


def _termination_time(body: bytes, seen_at: datetime) -> Parsed:
    text = as_text(body)
    at = moment(text)
    if at is None:
        # Documented: where no termination is due, there may be "a value that is not a time". A page or a
        # document is not such a value, and nothing at all may be a broken answer: neither may withdraw.
        if not text or text[0] in "<{[" or len(text) > MAX_TEXT:
            raise Malformed(f"{TERMINATION_TIME}: expected a time, got {short(text)}", body=body)
        return Parsed()
    detail = "spot interruption: terminate (legacy path)"
    return _one(
        _interruption(TERMINATION_TIME, seen_at, deadline=at, is_exact=True, is_final=True, detail=detail)
    )


def _interruption(
    signal: str,
    seen_at: datetime,
    *,
    deadline: datetime | None,
    is_exact: bool,
    is_final: bool,
    detail: str,
) -> Notice:
    """Return the notice of the one interruption that an instance can have; its time may slide, its id not."""
    return Notice(
        id=_INTERRUPTION_ID,
        provider="aws",
        signal=signal,
        kind=Kind.RECLAIM,
        seen_at=seen_at,
        deadline=deadline,
        certainty=Certainty.EXACT if is_exact else Certainty.ESTIMATE,
        window_seconds=WINDOW_SECONDS,
        is_final=is_final,
        detail=detail,
    )


def _rebalance(body: bytes, seen_at: datetime) -> Parsed:
    row = as_json(body)
    if not isinstance(row, dict) or "noticeTime" not in row:
        raise Malformed(f"{REBALANCE}: no 'noticeTime' in {short(row)}", body=body)
    issued_at = moment(row["noticeTime"])
    detail = "rebalance recommendation"
    if issued_at is None:
        detail += f", unreadable noticeTime {short(row['noticeTime'])}"
    return _one(
        Notice(
            id=_REBALANCE_ID,
            provider="aws",
            signal=REBALANCE,
            kind=Kind.AT_RISK,
            seen_at=seen_at,
            certainty=Certainty.ESTIMATE,
            ends_machine=False,
            issued_at=issued_at,
            detail=detail,
        )
    )


def _asg(body: bytes, seen_at: datetime) -> Parsed:
    state = as_text(body)
    if state in _OTHER_STATES or re.fullmatch(r"Warmed:[A-Za-z]{1,40}", state):
        return Parsed()
    if state != "Terminated":
        raise Malformed(f"{ASG}: unknown target lifecycle state {short(state)}", body=body)
    return _one(
        Notice(
            id=_ASG_ID,
            provider="aws",
            signal=ASG,
            kind=Kind.RECLAIM,
            seen_at=seen_at,
            certainty=Certainty.ESTIMATE,
            window_seconds=HOOK_WINDOW_SECONDS,
            is_final=True,
            detail="Auto Scaling target state: Terminated",
        )
    )


def _one(notice: Notice) -> Parsed:
    return Parsed(notices=(notice,))


_PARSERS: Mapping[str, Callable[[bytes, datetime], Parsed]] = {
    INSTANCE_ACTION: _instance_action,
    TERMINATION_TIME: _termination_time,
    REBALANCE: _rebalance,
    ASG: _asg,
    SCHEDULED_EVENTS: scheduled_events,
}
