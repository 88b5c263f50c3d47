# SPDX-License-Identifier: Apache-2.0
"""What this process holds open, by identity: a count would change when something of an earlier test ends."""

from __future__ import annotations

import contextlib
import gc
import threading
from pathlib import Path

_FDS = Path("/proc/self/fd")


def open_descriptors() -> set[tuple[int, str]]:
    """Return each open descriptor with what it stands for, as in (7, "socket:[1234]").

    What is garbage is closed first.
    """
    gc.collect()
    found = set()
    for entry in _FDS.iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this listing
            found.add((int(entry.name), str(entry.readlink())))
    return found


def open_sockets() -> set[str]:
    """Return the sockets of this process."""
    return {target for _, target in open_descriptors() if target.startswith("socket:")}


def running_threads() -> set[threading.Thread]:
    """Return the threads of this process."""
    return set(threading.enumerate())
