# SPDX-License-Identifier: Apache-2.0
"""Whose files count here: the flag is given to the trainer's user, and only that user's status is believed.

It reads no file and changes no owner.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from spotwatch.clock import Clock
from spotwatch.config_check import resolve_owner
from spotwatch.targets import Target

KNOWN_SECONDS = 10.0
"""How long the users found are taken as known; finding them means looking through /proc."""


class Owners:
    """The users on the trainer's side.

    Args:
        named: `flag.owner` of the configuration; may be empty.
        targets: asked for their owners.
        clock: for how long an answer is kept.
    """

    def __init__(self, named: str, targets: Sequence[Target], clock: Clock) -> None:
        self._named = resolve_owner(named)
        self._targets = targets
        self._clock = clock
        self._users: frozenset[int] = frozenset()
        self._known_until = float("-inf")

    def of_flag(self) -> tuple[int, int] | None:
        """Return (uid, gid) that the flag is given to; None: it stays ours."""
        if self._named is not None:
            return self._named
        return next((owner for target in self._targets if (owner := target.owner()) is not None), None)

    def of_status(self) -> frozenset[int]:
        """Return the uids whose status files count: ours, the flag owner's and the targets'."""
        now = self._clock.monotonic()
        if now >= self._known_until:
            self._known_until = now + KNOWN_SECONDS
            owners = [self._named, *(target.owner() for target in self._targets)]
            self._users = frozenset({os.geteuid(), *(owner[0] for owner in owners if owner is not None)})
        return self._users
