# SPDX-License-Identifier: Apache-2.0
"""Whether this machine's clock is known to be right, as the kernel or systemd's time service says.

It sets nothing, and does not say how far off a clock is. Standard library only.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

# adjtimex(2): what it returns when the clock is not synchronised.
_TIME_ERROR = 5
# struct timex has 208 bytes on 64-bit Linux; its first field, `modes`, is 0: only ask.
_TIMEX_BYTES = 512
_PROC_STATUS = Path("/proc/self/status")
# systemd-timesyncd(8): touched once the clock is set; the directory is the service's own.
_TIMESYNC = Path("/run/systemd/timesync")


def is_clock_synced(*, status: Path = _PROC_STATUS, timesync: Path = _TIMESYNC) -> bool | None:
    """Tell whether the clock is synchronised; None: nobody says.

    A process under a system call filter does not ask the kernel: a filter without `adjtimex`, which systemd's
    `@system-service` is, may kill it for the question.

    Args:
        status: of this process, where the kernel says whether there is a filter.
        timesync: where systemd's time service says that it has set the clock.
    """
    if "Seccomp:\t0" in _read(status):
        return _asked_of_kernel()
    if (timesync / "synchronized").exists():
        return True
    return False if timesync.is_dir() else None


def _asked_of_kernel() -> bool | None:
    libc = ctypes.CDLL(None, use_errno=True)
    answer: int = libc.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    return None if answer < 0 else answer != _TIME_ERROR


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
