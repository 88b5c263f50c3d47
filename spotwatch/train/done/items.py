# SPDX-License-Identifier: Apache-2.0
"""The items of a batch: how often they can be gone through, and what their number says of their keys.

It knows neither shares nor outputs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from spotwatch.errors import ConfigError

log = logging.getLogger("spotwatch.train")

Items = Iterable[Any] | Callable[[], Iterable[Any]]


def passes_over(items: Items, *, again: bool) -> Callable[[], Iterable[Any]]:
    """Return what gives the items at each call.

    Args:
        items: or a function that returns an iterator over them.
        again: they will be gone through more than once.

    Raises:
        ConfigError: they cannot be.
    """
    if callable(items) and not hasattr(items, "__iter__"):
        return items
    if again and iter(items) is items:
        raise ConfigError(
            f"items is a {type(items).__name__}, which can be gone through once: a list in several shares "
            "goes through it more often; give a list, a range, a dataset, or a function that returns one"
        )
    return lambda: items


def warn_of_keys(seen: int, known: int, left: int) -> None:
    """Say what cannot be right about the keys of a batch that is done. Only numbers are compared.

    Args:
        seen: how many items there are.
        known: how many keys have an output.
        left: how many items were offered and not added.
    """
    if left > 0:
        log.warning("%d items were offered and not added: the next start offers them again", left)
    twice = seen - known - max(left, 0)
    if twice > 0:
        log.warning("at least %d of %d items had a key that another has, and were passed over", twice, seen)
    elif seen < known:
        log.warning(
            "the list has outputs of at least %d keys that are not among these %d items: was it begun with "
            "others under this run_id?",
            *(known - seen, seen),
        )
