# SPDX-License-Identifier: Apache-2.0
"""Many objects of a store, read some at once and given in order, while the caller looks at its orders.

What is missing or damaged is an answer and given as such; it does not know what the objects mean.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from functools import partial

from spotwatch.errors import CheckpointCorrupt, StoreMissing
from spotwatch.train.registry.patience import patiently
from spotwatch.train.store import Store
from spotwatch.train.stores.crew import Crew

_AT_ONCE = 16
_TICK_SECONDS = 0.1

Answer = bytes | StoreMissing | CheckpointCorrupt


def fetch_all(
    store: Store, keys: Sequence[str], *, most_bytes: int, patience_seconds: float, look: Callable[[], None]
) -> Iterator[tuple[str, Answer]]:
    """Yield each key with its object, in order.

    Args:
        store: to read from.
        keys: of the objects.
        most_bytes: of each.
        patience_seconds: for how long the store is asked again where it refuses.
        look: called several times a second; what it raises ends the reading.

    Raises:
        StoreError: the store refuses for longer than that.
    """
    crew = Crew(_AT_ONCE, "spotwatch-fetch")
    under_way: deque[tuple[str, Future[Answer]]] = deque()
    left = iter(keys)
    while True:
        # Never more than the crew has room for, so that no submission waits for a store that hangs.
        while len(under_way) < _AT_ONCE and (key := next(left, None)) is not None:
            ask = partial(_ask, store, key, most_bytes, patience_seconds)
            under_way.append((key, crew.submit(ask)))
        if not under_way:
            return
        key, future = under_way.popleft()
        yield key, _wait_for(future, look)


def _wait_for(future: Future[Answer], look: Callable[[], None]) -> Answer:
    while True:
        look()
        try:
            return future.result(_TICK_SECONDS)
        except NotYet:
            if future.done():
                raise  # the store's own


def _ask(store: Store, key: str, most_bytes: int, patience_seconds: float) -> Answer:
    try:
        return patiently(lambda: store.get(key, most_bytes=most_bytes), patience_seconds, time.sleep)
    except (StoreMissing, CheckpointCorrupt) as error:
        return error
