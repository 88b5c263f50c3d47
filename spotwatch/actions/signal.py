# SPDX-License-Identifier: Apache-2.0
"""A stop, carried out on one target: find its processes, then tell each of them once.

It does not know how a target is found or told, and never retries: the runner does.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from spotwatch.model import Do, Notice, Step
from spotwatch.targets import Target


class SignalAction:
    """Tell one trainer to save and exit.

    Args:
        target: the trainer.
    """

    name: ClassVar[str] = "signal"
    does: ClassVar[frozenset[Do]] = frozenset({Do.STOP})

    def __init__(self, target: Target) -> None:
        self.target = target

    async def fire(self, step: Step, notice: Notice) -> str:
        """Find the trainer and stop it, whatever the notice was.

        Raises:
            ActionError: it is missing or could not be told; it may be tried again.
        """
        del step, notice
        # In a thread: /proc may be long, and systemd is waited for up to 2 s.
        procs = await asyncio.to_thread(self.target.find)
        return await self.target.stop(procs)
