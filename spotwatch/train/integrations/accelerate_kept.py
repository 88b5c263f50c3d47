# SPDX-License-Identifier: Apache-2.0
"""What a program steps between the evaluations of one step, kept as it was before the first of them.

That is schedulers, the numbers that they set in optimizers, and registered objects of single numbers. Objects
with larger tensors are left alone: a program may have exchanged them with the model's weights for the time of
the evaluation, and takes them back itself. So are an optimizer's switches, as `train_mode` of schedule-free
ones: they go with weights that the program has changed back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from numbers import Number
from typing import Any

import torch

from spotwatch.errors import ConfigError
from spotwatch.model import JSON
from spotwatch.train.state import encoding
from spotwatch.train.state.found import Found

log = logging.getLogger("spotwatch.train")


class Kept:
    """The states of some objects at one moment, in the form that a save would give them.

    Args:
        things: with `state_dict` and `load_state_dict`; of an optimizer only such numbers are kept.
    """

    def __init__(self, things: Iterable[Any]) -> None:
        self._things = [_Rates(one) if isinstance(one, torch.optim.Optimizer) else one for one in things]
        self._states: list[tuple[Any, JSON, dict[str, torch.Tensor]]] = []

    def take(self) -> None:
        """Keep what is now; what has no safe form any more is said, and left alone from here on."""
        self._states = []
        for thing in self._things:
            found = Found(sharded=True)
            try:
                state = encoding.encode(thing.state_dict(), type(thing).__qualname__, found.save)
            except ConfigError as error:
                # The next save fails by it, and says so; an evaluation goes on without.
                log.warning("not kept for an evaluation that is broken off: %s", error)
                continue
            tensors = found.by_name
            if all(tensor.dim() == 0 for tensor in tensors.values()):
                numbers = {name: tensor.detach().clone() for name, tensor in tensors.items()}
                self._states.append((thing, state, numbers))
        # Others are not asked again: large ones may take long, and what has no safe form is said once.
        self._things = [thing for thing, _, _ in self._states]

    def put_back(self) -> None:
        """Make all as it was at the last `take`; once."""
        states, self._states = self._states, []
        for thing, state, numbers in states:
            thing.load_state_dict(encoding.decode(state, numbers.__getitem__))


class _Rates:
    """What schedulers set in an optimizer: learning rate, momentum and the like, of each group."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return them."""
        groups = self._optimizer.param_groups
        return {"groups": [{key: group[key] for key in group if _is_number(group[key])} for group in groups]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them back; a tensor stays the one that graphs and schedulers have hold of."""
        for group, rates in zip(self._optimizer.param_groups, state["groups"], strict=False):
            for key, value in rates.items():
                if isinstance(group.get(key), torch.Tensor):
                    group[key].copy_(value)
                else:
                    group[key] = value


def _is_number(value: object) -> bool:
    """Tell whether it is one, or a pair of them as Adam's betas; parameters are a list."""
    if isinstance(value, tuple):
        return all(_is_number(one) for one in value)
    return isinstance(value, (Number, torch.Tensor)) and not isinstance(value, bool)
