# SPDX-License-Identifier: Apache-2.0
"""A call that may hang, on a way out that may not.

What hangs goes on in a thread, which ends with the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


def is_over_within(seconds: float, call: Callable[[], None]) -> bool:
    """Call it, and tell whether it has returned in time; what hangs goes on in a thread."""
    thread = threading.Thread(target=call, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread is to be had, for lack of memory or because the interpreter ends
        call()
        return True
    thread.join(seconds)
    return not thread.is_alive()
