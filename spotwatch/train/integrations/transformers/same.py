# SPDX-License-Identifier: Apache-2.0
"""Whether the data of a later life is that of the lives before it: how long it is, and which rows it has.

It knows no order, which `order` does, and puts nothing back.
"""

from __future__ import annotations

import logging
from typing import Any

from spotwatch.errors import ConfigError
from spotwatch.train.integrations import rows
from spotwatch.train.integrations.transformers import loaders

log = logging.getLogger("spotwatch.train")

Seen = dict[str, list[bytes]]
"""A few rows of each dataset, by its name."""

_TRAINED = "train_dataset"


def look(loader: Any, evaluated: Any) -> Seen:
    """Return a few rows of what is trained on, and of the datasets of evaluations."""
    by_name = {f"eval_dataset[{name!r}]": one for name, one in _named(evaluated)}
    by_name |= {} if by_name else {"eval_dataset": evaluated}
    by_name[_TRAINED] = getattr(loader, "dataset", None)
    return {name: rows.look(one) for name, one in by_name.items()}


def expect(place: dict[str, Any], loader: Any, now: Seen) -> None:
    """Refuse to go on within an epoch with other data.

    Args:
        place: what `Feed.state_dict` returned.
        loader: to go on with.
        now: what `look` returned in this life.

    Raises:
        ConfigError: it has more or fewer batches or samples, or other rows.
    """
    was, there = place["length"], loaders.length(loader)
    if was != there:
        raise ConfigError(
            f"the run was stopped within an epoch of {was[0]} batches of {was[1]} samples, and there are "
            f"{there[0]} of {there[1]} now: train with the same dataset until that epoch's end, or set "
            f"ignore_data_skip=True to begin the epoch's data anew"
        )
    if place["taken"] != was[0] and _TRAINED in _others(place, now):
        raise ConfigError(
            "the run was stopped within an epoch, and train_dataset has other rows now: split, shuffle and "
            "sample with a seed (train_test_split(..., seed=0)) so that each life has the same, or set "
            "ignore_data_skip=True to begin the epoch's data anew"
        )


def tell(place: dict[str, Any], now: Seen) -> None:
    """Warn of datasets that have other rows than in the lives before."""
    for name in _others(place, now):
        log.warning(
            "%s has other rows than in the lives of this run before: if they are from a split, split with a "
            "seed, for what was trained on is evaluated now, and what was evaluated trained on",
            name,
        )


def is_other_epoch(place: dict[str, Any], loader: Any) -> bool:
    """Tell whether all of its epoch was taken, of another number of batches than this loader has."""
    length = place["length"][0]
    return length not in (None, loaders.length(loader)[0]) and bool(place["taken"] >= length)


def _others(place: dict[str, Any], now: Seen) -> list[str]:
    before = place.get("rows", {})
    return [name for name, seen in now.items() if not rows.are_same(before.get(name, []), seen)]


def _named(evaluated: Any) -> list[tuple[str, Any]]:
    return list(evaluated.items()) if isinstance(evaluated, dict) else []
