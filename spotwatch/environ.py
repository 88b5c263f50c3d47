# SPDX-License-Identifier: Apache-2.0
"""Which of our environment others may see: trainers and hooks get it without our secrets.

It reads no environment itself. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# Sections whose every value may be secret (an announcement's URL is), and names that say so themselves.
_SECRET = re.compile(
    r"SPOTWATCH_((WEBHOOK|ANNOUNCE)__.*|.*(SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|PRIVATE|_KEY).*)"
)
# systemd's words to its service: a trainer or hook that repeats them would speak in our name.
_SYSTEMD = frozenset(
    {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"}
)


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without spotwatch's secrets and without systemd's private line to us."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _SYSTEMD and not _SECRET.fullmatch(name.upper())
    }
