# SPDX-License-Identifier: Apache-2.0
"""What was seen of one rehearsed reclaim, what of it is wrong, and the document for machines.

Pure: it measures nothing. A value that could not be known is None and named with the reason, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spotwatch.drill.plan import FLUSHING

SAVED_EXIT = 75
"""A trainer that was stopped and has a durable save (`docs/handshake.md`)."""
NOT_REACHED = "the rehearsal did not get that far"


@dataclass(slots=True, kw_only=True)
class Outcome:
    """One cloud's rehearsal, filled in as it goes."""

    cloud: str
    order_limit_seconds: float
    is_own: bool = False
    """The user's trainer: what only ours writes down cannot be asked of it."""
    has_status: bool = False
    """The trainer spoke to the daemon through a status file, as the library does."""
    steps_lost: int | None = None
    steps_twice: int | None = None
    steps_skipped: int | None = None
    first_exit_code: int | None = None
    final_exit_code: int | None = None
    bit_identical: bool | None = None
    notice_to_order_seconds: float | None = None
    notice_to_saved_seconds: float | None = None
    """To the first durable save that the notice caused: from then on the work is safe."""
    notice_to_exit_seconds: float | None = None
    resume_seconds: float | None = None
    """From the start of the replacement's trainer to its first step."""
    orders: list[tuple[str, str]] = field(default_factory=list)
    """What was ordered and how it was answered, by the daemon's journal."""
    troubles: list[str] = field(default_factory=list)
    """What went wrong in the rehearsal itself or was found on the way."""
    unknown: dict[str, str] = field(default_factory=dict)
    """Why a value is None."""


_VALUES = (
    "steps_lost",
    "first_exit_code",
    "final_exit_code",
    "bit_identical",
    "notice_to_order_seconds",
    "notice_to_saved_seconds",
    "resume_seconds",
)
_MAY_BE_UNKNOWN = frozenset({"steps_lost", "bit_identical", "notice_to_saved_seconds", "resume_seconds"})
"""Of a user's trainer; of ours each value must be known."""


def problems(outcome: Outcome) -> list[str]:
    """Return everything that keeps the rehearsal from being a pass, in words."""
    o = outcome
    found = [*o.troubles]
    for count, what in (
        (o.steps_lost, "done before the reclaim and lost"),
        (o.steps_twice, "executed twice"),
        (o.steps_skipped, "never executed"),
    ):
        if count:
            found.append(f"{count} steps were {what}")
    if o.first_exit_code not in (None, SAVED_EXIT):
        found.append(
            f"on the first machine the trainer ended with {o.first_exit_code}; {SAVED_EXIT} says that it was "
            "stopped and its save is durable"
        )
    if o.final_exit_code not in (None, 0):
        found.append(f"on the replacement the trainer ended with {o.final_exit_code}, not 0")
    if o.bit_identical is False:
        found.append("the final tensors differ from those of the uninterrupted run")
    order = o.notice_to_order_seconds
    if order is not None and order > o.order_limit_seconds:
        found.append(f"the order came after {order:.2f} s; the limit is {o.order_limit_seconds:g} s")
    found += _wrong_orders(o)
    excused = _MAY_BE_UNKNOWN if o.is_own else frozenset()
    missing = [name for name in _VALUES if getattr(o, name) is None and name not in excused]
    # After trouble much is missing, and the trouble is the reason.
    return found or [f"{name} is unknown: {o.unknown.get(name, NOT_REACHED)}" for name in missing]


def cloud_document(outcome: Outcome) -> Mapping[str, Any]:
    """Return one cloud's part of the document."""
    o = outcome
    found = problems(o)
    missing = [name for name in (*_VALUES, "steps_executed_twice") if _value(o, name) is None]
    return {
        "cloud": o.cloud,
        "steps_lost": o.steps_lost,
        "steps_executed_twice": o.steps_twice,
        "steps_never_executed": o.steps_skipped,
        "first_exit_code": o.first_exit_code,
        "final_exit_code": o.final_exit_code,
        "bit_identical": o.bit_identical,
        "notice_to_order_seconds": _rounded(o.notice_to_order_seconds),
        "notice_to_order_limit_seconds": o.order_limit_seconds,
        "notice_to_saved_seconds": _rounded(o.notice_to_saved_seconds),
        "notice_to_exit_seconds": _rounded(o.notice_to_exit_seconds),
        "resume_seconds": _rounded(o.resume_seconds),
        "orders": [{"do": do, "answer": answer or None} for do, answer in o.orders],
        "unknown": {name: o.unknown.get(name, NOT_REACHED) for name in missing},
        "problems": found,
        "verdict": "fail" if found else "pass",
    }


def document(outcomes: Sequence[Outcome], *, window_seconds: float) -> Mapping[str, Any]:
    """Return the whole document of `drill --json`, version 1."""
    clouds = [cloud_document(outcome) for outcome in outcomes]
    is_pass = bool(clouds) and all(cloud["verdict"] == "pass" for cloud in clouds)
    return {
        "version": 1,
        "verdict": "pass" if is_pass else "fail",
        "window_seconds": window_seconds,
        "clouds": clouds,
    }


def _wrong_orders(o: Outcome) -> list[str]:
    """Return what is wrong with the orders given: flush then stop where there is time, else one stop."""
    ordered = [do for do, _ in o.orders]
    if not ordered:
        return [] if o.notice_to_order_seconds is None else ["no order is in the daemon's journal"]
    if ordered.count("stop") != 1 or ordered[-1] != "stop":
        return [f"one stop was expected at the end; ordered: {', '.join(ordered)}"]
    if o.cloud not in FLUSHING:
        return [] if ordered == ["stop"] else [f"a stop at once was expected; ordered: {', '.join(ordered)}"]
    if ordered[0] != "flush":
        return ["a flush was expected before the stop; ordered: stop"]
    is_answered = o.orders[0][1] == "durable" or (o.is_own and not o.has_status)
    return [] if is_answered else [f"the flush was answered with {o.orders[0][1] or 'nothing'}, not durable"]


def _value(o: Outcome, name: str) -> Any:
    return o.steps_twice if name == "steps_executed_twice" else getattr(o, name)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
