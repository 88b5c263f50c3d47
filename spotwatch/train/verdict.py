# SPDX-License-Identifier: Apache-2.0
"""What a process that works on a run or a list ends with: its exit code, and the words for it.

Pure. Whether something is durable or finished others know.
"""

from __future__ import annotations

FINISHED = 0
DURABLE = 75
NOT_DURABLE = 76
TAKEN = 77


def code(*, taken: bool, durable: bool, finished: bool) -> int:
    """Return the exit code.

    Args:
        taken: another process has what this one was at work on.
        durable: nothing that was done can be lost.
        finished: there is nothing left to do.
    """
    if taken:
        return TAKEN
    if not durable:
        return NOT_DURABLE
    return FINISHED if finished else DURABLE


def phase(exit_code: int) -> str:
    """Return the last phase in the status."""
    return {FINISHED: "finished", DURABLE: "durable"}.get(exit_code, "failed")


def ending(exit_code: int) -> str:
    """Return how a life has ended, as whoever has the run next reads it."""
    return {FINISHED: "finished", DURABLE: "stopped"}.get(exit_code, "failed")
