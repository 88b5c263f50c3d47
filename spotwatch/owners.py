# SPDX-License-Identifier: Apache-2.0
"""Whose files count here: the flag is given to the trainer's user, and only that user's status is believed.

Finding a user means looking through /proc or asking systemd, so it is done in a thread and remembered: nobody
who asks here is held up. It reads no file and changes no owner.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

from spotwatch.clock import Clock
from spotwatch.config_check import resolve_owner
from spotwatch.targets import Target

KNOWN_SECONDS = 10.0
"""How long the users found are taken as known."""
WAIT_SECONDS = 0.5
"""How long an order waits at most for a user that is not known yet."""

Owner = tuple[int, int]


class Owners:
    """The users on the trainer's side.

    Args:
        named: `flag.owner` of the configuration; may be empty.
        targets: asked for their owners.
        clock: for how long an answer is kept.
        on_found: called with uid and gid when the flag's owner becomes known, or another.
    """

    def __init__(
        self,
        named: str,
        targets: Sequence[Target],
        clock: Clock,
        *,
        on_found: Callable[[Owner], None] = lambda _: None,
    ) -> None:
        self._named = resolve_owner(named)
        self._targets = targets
        self._clock = clock
        self._on_found = on_found
        self._found: list[Owner | None] = [None] * len(targets)
        self._known_until = float("-inf")
        self._asking: asyncio.Future[list[Owner | None]] | None = None

    def of_flag(self) -> Owner | None:
        """Return (uid, gid) that the flag is given to; None: it stays ours."""
        return next((owner for owner in (self._named, *self._found) if owner is not None), None)

    def of_status(self) -> frozenset[int]:
        """Return the uids whose status files count: ours, the flag owner's and the targets'."""
        if self._clock.monotonic() >= self._known_until:
            self._ask()
        owners = [self._named, *self._found]
        return frozenset({os.geteuid(), *(owner[0] for owner in owners if owner is not None)})

    async def refresh(self) -> None:
        """Look for owners that are not known yet, and wait for half a second at most."""
        if self._named is None and None in self._found:
            await asyncio.wait([self._ask()], timeout=WAIT_SECONDS)

    def _ask(self) -> asyncio.Future[list[Owner | None]]:
        if self._asking is None:
            self._known_until = self._clock.monotonic() + KNOWN_SECONDS
            loop = asyncio.get_running_loop()
            self._asking = loop.run_in_executor(None, lambda: [target.owner() for target in self._targets])
            self._asking.add_done_callback(self._take)
        return self._asking

    def _take(self, asked: asyncio.Future[list[Owner | None]]) -> None:
        self._asking = None
        if asked.cancelled() or asked.exception() is not None:
            return
        before = self.of_flag()
        # One that is away keeps the user that it was last seen with.
        self._found = [new or old for new, old in zip(asked.result(), self._found, strict=True)]
        now = self.of_flag()
        if now is not None and now != before:
            self._on_found(now)
