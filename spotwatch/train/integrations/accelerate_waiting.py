# SPDX-License-Identifier: Apache-2.0
"""A wait for other processes that lasts long, said while it lasts: they may never come. It ends none."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("spotwatch.train")


@contextmanager
def said_if_long(seconds: float, what: str) -> Iterator[None]:
    """Say what is waited for, if what is done in here is not done after so long."""
    timer = threading.Timer(seconds, log.warning, args=("for %.0f s %s", seconds, what))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
