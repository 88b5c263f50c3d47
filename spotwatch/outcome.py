# SPDX-License-Identifier: Apache-2.0
"""The exit code that says how a run ended, read from the record since launchers hide their children's.

torchrun turns every code of a rank into 1 (checked with torch 2.13). It decides nothing else.
"""

from __future__ import annotations

from spotwatch.assembly import Assembly
from spotwatch.handshake import EXIT_DURABLE

FINISHED = 0
NOT_DURABLE = 76
LEASE_LOST = 77
_CODES_OF_THE_LIBRARY = (EXIT_DURABLE, NOT_DURABLE, LEASE_LOST)


def exit_code(parts: Assembly, child_code: int | None) -> int:
    """Return what to exit with.

    75 promises a durable save, so it takes one that is on record, or a trainer that says 75 itself, behind a
    launcher by its status: it may have answered another machine's notice, or a signal that came before any
    order. One that was told to stop and ends with 0 has said nothing of a save, unless its status says that
    it has finished.

    Args:
        parts: the ledger knows whether a stop was ordered and answered, the trainers whether they finished.
        child_code: how the trainer ended, 128 + n for a signal; None: it was not our child.
    """
    stop = parts.runner.last_stop()
    if child_code in _CODES_OF_THE_LIBRARY:
        return child_code
    left_with = parts.trainers.left_with()
    if LEASE_LOST in left_with:
        return LEASE_LOST
    if EXIT_DURABLE in left_with and left_with <= {FINISHED, EXIT_DURABLE}:
        return EXIT_DURABLE
    if stop is None or parts.trainers.have_finished():
        return child_code or FINISHED
    return EXIT_DURABLE if stop.answer == "durable" else NOT_DURABLE
