# SPDX-License-Identifier: Apache-2.0
"""The random state that a loader reads with: the global one, and generators that are attributes of its parts.

What functions close over, and what workers draw, it does not see.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spotwatch.train.integrations.chance import Notes
from spotwatch.train.integrations.generators import is_generator, make_generator
from spotwatch.train.state import rng


class Chance:
    """Notes the state of all, and puts it back.

    Args:
        parts: of the loader: its `collate_fn`, dataset and samplers, as far as this process uses them.
        others: generators that are saved elsewhere.
    """

    def __init__(self, parts: Iterable[Any], others: Iterable[Any]) -> None:
        self._notes = Notes()
        known = {id(one) for one in others}
        own: dict[int, Any] = {}
        for part in parts:
            make_generator(part)
            for one in vars(part).values() if hasattr(part, "__dict__") else ():
                if is_generator(one) and id(one) not in known:
                    own[id(one)] = rng.adapter(one)
        self._own = list(own.values())

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
