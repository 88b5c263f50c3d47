# SPDX-License-Identifier: Apache-2.0
"""A stop, carried out on one target: find its processes, then tell each of them once.

It does not know how a target is found or told, and never retries: the runner does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar

from spotwatch.errors import ActionError
from spotwatch.model import Do, Notice, Step
from spotwatch.targets import PartlyToldError, Proc, Target


class SignalAction:
    """Tell one trainer to save and exit.

    Args:
        target: the trainer.
        is_told: says which of its processes an earlier attempt has told; they are left alone.
    """

    name: ClassVar[str] = "signal"
    does: ClassVar[frozenset[Do]] = frozenset({Do.STOP})

    def __init__(self, target: Target, *, is_told: Callable[[Proc], bool] = lambda _: False) -> None:
        self.target = target
        self._is_told = is_told
        self.told: tuple[Proc, ...] = ()
        """The processes that the last attempt told."""

    async def fire(self, step: Step, notice: Notice) -> str:
        """Find the trainer and stop it, whatever the notice was.

        Raises:
            ActionError: it is missing or not all of it could be told; it may be tried again.
        """
        del step, notice
        self.told = ()
        # In a thread: /proc may be long, and systemd is waited for up to 2 s.
        found = await asyncio.to_thread(self.target.find)
        rest = tuple(proc for proc in found if not self._is_told(proc))
        if not rest:
            return f"{self.target.label}: told already"
        try:
            said = await self.target.stop(rest)
        except PartlyToldError as error:
            self.told = error.told
            raise ActionError(str(error)) from error
        self.told = rest
        return said
