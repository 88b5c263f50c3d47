# SPDX-License-Identifier: Apache-2.0
"""Actions that do nothing and say what they would have done: the null objects of `--dry-run`.

They take the place of the real ones; nobody else knows that a run is dry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from spotwatch import handshake
from spotwatch.actions import Occasion, Teller
from spotwatch.actions.handshake import FlagState, HandshakeAction
from spotwatch.model import Do, Notice, Step
from spotwatch.targets import Foreseeing, Proc, Target


class DryHandshake(HandshakeAction):
    """Writes no file."""

    async def fire(self, step: Step, notice: Notice) -> str:
        """Say which files would be written."""
        del notice
        files = {
            Do.FLUSH: f"raise {self.flag} and write {handshake.ORDER}",
            Do.STOP: f"write {handshake.ORDER} and {handshake.DRAINING}",
            Do.NONE: f"lift {handshake.DRAINING}",
        }
        return f"would {files[step.do]} (order {step.seq})"

    def raise_flag(self, order: handshake.Order) -> bool:
        """Claim that the flag is there."""
        del order
        return True

    def flag_state(self) -> FlagState:
        """Claim that a flag raised is still pending."""
        return FlagState.OURS

    def lift_draining(self) -> None:
        """Leave it."""

    def clear_other_boots(self) -> None:
        """Leave everything."""


class DryTarget:
    """Finds like the real target, signals and starts nobody."""

    def __init__(self, real: Target) -> None:
        self._real = real
        self.label = real.label
        self.signum = real.signum

    def find(self) -> tuple[Proc, ...]:
        """Return what the real target finds."""
        return self._real.find()

    def obstacle(self) -> str:
        """Return what would be in the real one's way."""
        return self._real.obstacle() if isinstance(self._real, Foreseeing) else ""

    def owner(self) -> tuple[int, int] | None:
        """Return what the real target says."""
        return self._real.owner()

    async def stop(self, procs: tuple[Proc, ...]) -> str:
        """Say who would be told."""
        return f"would tell {', '.join(str(proc.pid) for proc in procs)}"

    async def start(self) -> str:
        """Say what would be started."""
        return f"would start {self.label}"


class DryTeller:
    """Tells nobody."""

    name: ClassVar[str] = "announce"

    def __init__(self, real: Teller) -> None:
        self._real = real

    @property
    def occasions(self) -> frozenset[Occasion]:
        """Return what the real one wants to hear of."""
        return self._real.occasions

    async def tell(self, occasion: Occasion, notice: Notice, facts: Mapping[str, Any]) -> str:
        """Say what would be told."""
        del facts
        return f"would tell of {occasion} of {notice.id} by {self._real.name}"
