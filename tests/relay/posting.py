# SPDX-License-Identifier: Apache-2.0
"""A mailbox that can be away, and an outbox that writes to it.

It holds no test.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path

from spotwatch.errors import ProviderError
from spotwatch.mail.mailbox import Address, Letter, join
from spotwatch.relay.outbox import Outbox
from spotwatch.testing import FakeClock
from tests.mail.letters import OURS

HERE = Address(OURS)


class PlayedMailbox:
    """Takes letters, unless it is told not to."""

    def __init__(self) -> None:
        self.held: dict[Address, tuple[Letter, ...]] = {}
        self.tries: list[float] = []
        self.order: list[Address] = []
        self.errors: dict[Address | None, ProviderError] = {}
        """By address; None is for all."""
        self.hangs = False
        self.seconds = 0.0
        """That a write takes."""

    async def put(self, to: Address, letters: tuple[Letter, ...], *, now: datetime) -> None:
        """Join letters with what is held."""
        self.tries.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.seconds)
        if self.hangs:
            await asyncio.sleep(3600)
        error = self.errors.get(to) or self.errors.get(None)
        if error is not None:
            raise error
        self.order.append(to)
        for one in letters:
            self.held[to] = join(self.held.get(to, ()), one, now=now)


def problem_of(outbox: Outbox) -> ProviderError | None:
    """Return the problem anew: a type checker takes it for a constant."""
    return outbox.problem


def outbox_to(mailbox: PlayedMailbox, state_dir: Path | None) -> Outbox:
    """Return an outbox that writes there."""
    return Outbox(mailbox, FakeClock(), state_dir=state_dir)
