# SPDX-License-Identifier: Apache-2.0
"""When the daemon dies: a number of steps that it has left, and the parts that count them.

A step is a row written, a file changed, a signal sent, a sleep begun. It decides nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

from spotwatch import handshake
from spotwatch.actions.handshake import FlagState, HandshakeAction
from spotwatch.model import Event, Notice, Step
from spotwatch.testing import FakeClock


class Killed(BaseException):
    """The daemon's process ends here, without a word."""


class Fate:
    """How many steps one life of the daemon has left.

    Args:
        steps: None: it lives until the machine ends.
    """

    def __init__(self, steps: int | None) -> None:
        self._steps = steps
        self.is_dead = False

    def step(self) -> None:
        """Take one step, or die; whatever a dead daemon's tasks still try, they do not do.

        Raises:
            Killed: the life is over.
        """
        if self._steps is not None:
            self._steps -= 1
            self.is_dead |= self._steps < 0
        if self.is_dead:
            raise Killed


class MortalClock(FakeClock):
    """A clock in whose sleeps the daemon may die."""

    fate = Fate(None)

    async def sleep(self, seconds: float) -> None:
        """Sleep in virtual time."""
        self.fate.step()
        await super().sleep(seconds)
        self.fate.step()


class MortalHandshake(HandshakeAction):
    """Writes the files, and may die before or after each of them."""

    fate = Fate(None)

    async def fire(self, step: Step, notice: Notice) -> str:
        """Tell the trainer."""
        self.fate.step()
        said = await super().fire(step, notice)
        self.fate.step()
        return said

    def raise_flag(self, order: handshake.Order) -> bool:
        """Put the flag there."""
        self.fate.step()
        is_raised = super().raise_flag(order)
        self.fate.step()
        return is_raised

    def flag_state(self) -> FlagState:
        """Return what lies at the flag's path; asked between `draining` and the flag's removal."""
        self.fate.step()
        return super().flag_state()

    def lift_draining(self) -> None:
        """Remove `draining`."""
        self.fate.step()
        super().lift_draining()
        self.fate.step()


class MortalJournal:
    """Rows that are on disk when `append` returns, unless the daemon dies before.

    Args:
        rows: where they are kept over lives.
        fate: of this life.
        on_row: called for each row that is on disk.
    """

    def __init__(self, rows: list[Event], fate: Fate, *, on_row: Callable[[Event], None]) -> None:
        self.rows = rows
        self._on_row = on_row
        self._fate = fate

    def append(self, event: Event) -> None:
        """Take a row."""
        self._fate.step()
        self.rows.append(event)
        self._on_row(event)
        self._fate.step()

    async def flushed(self, seconds: float) -> bool:
        """Say yes."""
        del seconds
        return True

    def close(self) -> None:
        """Do nothing."""
