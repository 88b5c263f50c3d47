# SPDX-License-Identifier: Apache-2.0
"""What of an observed reclaim goes into its outcome: times, codes and steps, or why they are unknown.

It observes nothing itself and draws no conclusion; `watch` does the one, `verdict` the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from spotwatch.drill.counting import count_steps
from spotwatch.drill.verdict import SAVED_EXIT, Outcome
from spotwatch.drill.watch import Watch

NO_STATUS = "your trainer does not report to the daemon; one that uses spotwatch.train does"
_NO_TRACE = "your trainer does not write down which steps it executes"


def note_notice(seen: Outcome, watch: Watch, code: int | None, announced_at: float) -> None:
    """Note when order and save came.

    Args:
        seen: is changed.
        watch: of the first machine.
        code: the trainer's exit status; None: it still runs.
        announced_at: monotonic.
    """
    if watch.ordered_at:
        seen.notice_to_order_seconds = min(watch.ordered_at.values()) - announced_at
    elif code == 0:
        seen.troubles.append("the trainer had finished before it was told; make its run longer")
    else:
        seen.troubles.append("no order came before the trainer or its machine was gone")
    seen.has_status = watch.status is not None
    if watch.saved_at:
        seen.notice_to_saved_seconds = min(watch.saved_at.values()) - announced_at
    elif watch.status is None:
        seen.unknown["notice_to_saved_seconds"] = NO_STATUS


def note_steps(seen: Outcome, before: Sequence[int], after: Sequence[int], total_steps: int) -> None:
    """Note what became of the steps that our trainer wrote down on both machines."""
    steps = count_steps(before, after, total_steps)
    if steps is None:
        seen.unknown["steps_lost"] = "no step was executed on one of the machines"
        return
    seen.steps_lost, seen.steps_twice, seen.steps_skipped = steps.lost, steps.twice, steps.skipped


def note_own_steps(seen: Outcome, last_step: int, watch: Watch) -> None:
    """Note what a user's trainer says of its steps.

    Args:
        seen: is changed.
        last_step: its last word on the first machine.
        watch: of the replacement.
    """
    seen.unknown["bit_identical"] = "there is no uninterrupted run of your trainer to compare with"
    seen.unknown["steps_executed_twice"] = _NO_TRACE
    lost = max(0, last_step - watch.resumed_step)
    if not (seen.has_status and watch.status):
        seen.unknown["steps_lost"] = _NO_TRACE
    elif seen.first_exit_code == SAVED_EXIT:
        seen.steps_lost = lost
    else:
        # Its last word may be five seconds older than its end.
        seen.unknown["steps_lost"] = f"your trainer left without saying where; {lost} at the least"


def outcome_code(watch: Watch, code: int) -> int:
    """Return the exit code that counts: launchers hide their trainers' own, so the status goes before it."""
    status = watch.status
    stop_seq = max(watch.ordered_at, default=0)
    if status is not None and status.phase == "durable" and 0 < stop_seq <= status.saved.seq:
        return SAVED_EXIT
    return shell_code(code)


def shell_code(code: int) -> int:
    """Return an exit code as a shell tells it: 128 + n for signal n."""
    return 128 - code if code < 0 else code
