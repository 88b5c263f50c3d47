# SPDX-License-Identifier: Apache-2.0
"""SIGTERM, kept from the first moment of a command until it can be heard.

The kernel drops one that comes to process 1 before there is a handler, so a container that is stopped as it
starts would start all the same; any other process would end by it before it could say how.
"""

from __future__ import annotations

import signal


def hold_back() -> None:
    """Keep it pending; threads and processes that are started meanwhile keep theirs."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def let_through() -> None:
    """Take it from now on, and at once if one was kept; harmless if none is held back."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
