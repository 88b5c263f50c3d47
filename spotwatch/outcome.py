# SPDX-License-Identifier: Apache-2.0
"""The exit code that says how a run ended, read from the record since launchers hide their children's.

torchrun turns every code of a rank into 1 (checked with torch 2.13). It decides nothing else.
"""

from __future__ import annotations

from spotwatch.assembly import Assembly

FINISHED = 0
DURABLE = 75
NOT_DURABLE = 76
LEASE_LOST = 77
_CODES_OF_THE_LIBRARY = (DURABLE, NOT_DURABLE, LEASE_LOST)
_KILLED = 128


def exit_code(parts: Assembly, child_code: int | None) -> int:
    """Return what to exit with.

    Args:
        parts: the ledger knows whether a stop was ordered and answered.
        child_code: how the trainer ended, 128 + n for a signal; None: it was not our child.
    """
    stop = parts.runner.last_stop()
    if child_code in _CODES_OF_THE_LIBRARY:
        return child_code
    if stop is None:
        return child_code or FINISHED
    if stop.answer == "durable":
        return DURABLE
    if stop.answer == "acknowledged" and (child_code is None or child_code < _KILLED):
        return DURABLE if child_code in (None, FINISHED) else NOT_DURABLE
    return NOT_DURABLE
