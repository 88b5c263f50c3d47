# SPDX-License-Identifier: Apache-2.0
"""What a daemon that idles for weeks does once about its memory.

It measures nothing; `benchmarks/idle.py` does.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc


def settle_memory() -> None:
    """Give back what the start needed, and let the collector leave alone what lives as long as we do."""
    gc.collect()
    gc.freeze()
    with contextlib.suppress(OSError, AttributeError):
        # malloc_trim(3) is glibc's; other C libraries have none.
        ctypes.CDLL(None).malloc_trim(0)
