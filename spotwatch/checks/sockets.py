# SPDX-License-Identifier: Apache-2.0
"""Whether a process listens on a port of this machine, and whether it is stopped, as the kernel tells it.

It connects to nobody. Source: proc(5), /proc/net/tcp, /proc/PID/fd and /proc/PID/stat.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_LISTENS = "0A"
_STOPPED = frozenset("Tt")


def holds_port(pid: int, port: int) -> bool | None:
    """Tell whether process `pid` listens on TCP port `port`; None where that cannot be seen."""
    inodes = set(_listeners(port))
    if not inodes or pid <= 0:
        return None
    try:
        return any(_inode(link) in inodes for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return None  # gone, another user's, or in another pid namespace


def is_stopped(pid: int) -> bool:
    """Tell whether the daemon's process `pid` is stopped, by SIGSTOP or a debugger.

    A pid out of another namespace is somebody else's here: it counts only with our name in its command.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] in _STOPPED and b"spotwatch" in command


def _listeners(port: int) -> Iterator[str]:
    for table in _TABLES:
        try:
            lines = table.read_text(encoding="ascii", errors="replace").splitlines()[1:]
        except OSError:
            continue
        for columns in map(str.split, lines):
            if columns[3] == _LISTENS and int(columns[1].rpartition(":")[2], 16) == port:
                yield columns[9]


def _inode(link: Path) -> str:
    try:
        return os.fspath(link.readlink()).removeprefix("socket:[").removesuffix("]")
    except OSError:
        return ""  # closed just now
