# SPDX-License-Identifier: Apache-2.0
"""How much memory this process may still take: what the machine has left, and what its control groups allow.

It allocates nothing. Linux; elsewhere it knows no limit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

# Control groups, version 2 and version 1: limit, use, and the files' cache, which goes when memory is short.
# docs.kernel.org/admin-guide/cgroup-v2.html and cgroup-v1/memory.html, read 2026-11-29.
_V2 = ("memory.max", "memory.current", ("inactive_file", "active_file"))
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))


def available_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that can be taken without swapping and without meeting the limit of a control group.

    Args:
        proc: where the kernel's process files are.
        cgroups: where the control groups are.
    """
    return min([_machine(proc), *(_group(folder) for folder in _groups(proc, cgroups))])


def _machine(proc: Path) -> int:
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return sys.maxsize


def _groups(proc: Path, cgroups: Path) -> Iterator[Path]:
    for line in _lines(proc / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root = cgroups / controllers
        # In a container the path may be the host's, which is not to be seen here; the root is then our group.
        folder = root / path.lstrip("/")
        while folder != root and root in folder.parents:
            yield folder
            folder = folder.parent
        yield root


def _group(folder: Path) -> int:
    for limit_name, use_name, cache_names in (_V2, _V1):
        limit = next(_lines(folder / limit_name), "max")
        use = next(_lines(folder / use_name), "")
        if limit.isdigit() and use.isdigit():
            rows = (line.split() for line in _lines(folder / "memory.stat"))
            cache = sum(int(number) for name, number in rows if name in cache_names)
            return max(0, int(limit) - int(use) + cache)
    return sys.maxsize


def _lines(path: Path) -> Iterator[str]:
    try:
        text = path.read_text(encoding="ascii")
    except OSError:
        return
    yield from text.splitlines()
