# SPDX-License-Identifier: Apache-2.0
"""What an action must offer: it does one step to one receiver, and says what it did.

An action does not know policy, ledger, metrics or other actions; the runner decides, times and counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol

from spotwatch.model import Do, Notice, Step


class Action(Protocol):
    """One way to carry out a step."""

    name: ClassVar[str]
    does: ClassVar[frozenset[Do]]

    async def fire(self, step: Step, notice: Notice) -> str:
        """Carry out `step`, caused by `notice`, and return what was done, in a few words for the journal.

        Raises:
            ActionError: it was not done; it may be tried again.
        """


Occasion = Literal["notice", "saved", "missed", "withdrawn", "survived"]


class Teller(Protocol):
    """Someone outside who is told what happened, after the trainer was; a failure changes nothing else."""

    name: ClassVar[str]

    @property
    def occasions(self) -> frozenset[Occasion]:
        """Return what this one wants to hear of."""

    async def tell(self, occasion: Occasion, notice: Notice, facts: Mapping[str, Any]) -> str:
        """Tell it, within its own time limit, and return what was done, in a few words for the journal.

        Args:
            occasion: what happened.
            notice: the notice that caused it.
            facts: JSON values beside the notice: step, url, save_seconds, deadline, …

        Raises:
            ActionError: it was not told.
        """
