# SPDX-License-Identifier: Apache-2.0
"""What an action must offer: it does one step to one receiver, and says what it did.

An action does not know policy, ledger, metrics or other actions; the runner decides, times and counts.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

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
