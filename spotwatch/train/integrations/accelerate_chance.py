# SPDX-License-Identifier: Apache-2.0
"""The random state that a loader reads with: the global one, and generators that its parts hold and use.

Which these are is looked up once. What workers draw it does not see.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spotwatch.train.integrations.chance import Notes
from spotwatch.train.integrations.generators import make_generator
from spotwatch.train.integrations.reach import reach
from spotwatch.train.state import rng


class Chance:
    """Notes the state of all, and puts it back.

    Args:
        parts: of the loader: its `collate_fn`, dataset and samplers, as far as this process uses them.
        others: generators that are saved elsewhere.
    """

    def __init__(self, parts: Iterable[Any], others: Iterable[Any]) -> None:
        self._notes = Notes()
        roots = {str(number): part for number, part in enumerate(parts)}
        for owner in reach(roots).owners.values():
            make_generator(owner)
        known = {id(one) for one in others}
        found = [slot.value for slot in reach(roots).generators.values()]
        self._own: list[Any] = [rng.adapter(one) for one in found if id(one) not in known]

    def take(self) -> dict[str, Any]:
        """Return the state as it is now."""
        state = self._notes.take()
        if self._own:
            state["own"] = self.own()
        return state

    def put(self, state: dict[str, Any]) -> None:
        """Make it so again."""
        self._notes.put(state)
        self.put_own(state.get("own", []))

    def own(self) -> list[Any]:
        """Return the states of the generators of the loader's parts."""
        return [get() for get, _ in self._own]

    def put_own(self, states: list[Any]) -> None:
        """Make these so again, if there are as many."""
        if len(states) == len(self._own):
            for (_, put), state in zip(self._own, states, strict=True):
                put(state)
