# SPDX-License-Identifier: Apache-2.0
"""How long a store that refuses is asked again, and which refusals asking again cannot mend.

It does not know what is asked.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from spotwatch.errors import (
    CheckpointCorrupt,
    NoRoom,
    RunTaken,
    StoreConflict,
    StoreError,
    StoreMissing,
    StoreSilent,
)
from spotwatch.train.schedule import pause_seconds

log = logging.getLogger("spotwatch.train")
T = TypeVar("T")

_TICK_SECONDS = 0.1
ANSWERS = (StoreMissing, StoreConflict, CheckpointCorrupt, RunTaken, NoRoom)
"""Answers, no failures to answer: they will be the same the next time."""


def patiently(call: Callable[[], T], seconds: float, wait: Callable[[float], None]) -> T:
    """Return what `call` returns; ask again while it raises `StoreError`, for so many seconds from the first.

    Args:
        call: asks the store.
        seconds: 0: it is asked once.
        wait: lets so many seconds pass; what it raises ends the asking.

    Raises:
        StoreError: it still refuses; or its answer is that something is missing, damaged or another's.
    """
    give_up_at = None
    failures = 0
    while True:
        try:
            return call()
        except (*ANSWERS, StoreSilent):  # silence has had its patience
            raise
        except StoreError as error:
            failures += 1
            now = time.monotonic()
            give_up_at = now + seconds if give_up_at is None else give_up_at
            pause = pause_seconds(failures)
            if now + pause > give_up_at:
                tries = "once" if failures == 1 else f"{failures} times"
                raise StoreError(f"{error} (tried {tries} in {seconds:g} s)") from error
            log.warning("asking again in %.1f s: %s", pause, error)
            wait(pause)


def waiting_with(between: Callable[[], None]) -> Callable[[float], None]:
    """Return a wait that calls `between` several times a second; it may raise."""

    def wait(seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            between()
            time.sleep(min(left, _TICK_SECONDS))

    return wait
