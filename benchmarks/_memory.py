# SPDX-License-Identifier: Apache-2.0
"""How much memory a process and its children take, shared memory counted once, and the most they took.

A resident size counts a page once for each process that has touched it, so sizes cannot be added up. The
exact share (smaps_rollup) takes the kernel tens of milliseconds for gigabytes and holds the process up
meanwhile. So: the private pages of every process (RssAnon) and, once, the blocks of the memory files that
they hold open or the most shared pages that one of them has mapped (RssShmem), whichever is more. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

_LOOK_SECONDS = 0.02
_BLOCK_BYTES = 512
_FORKED_WITHOUT_EXEC = 0x40  # PF_FORKNOEXEC, linux/sched.h


def family(pid: int) -> list[int]:
    """Return `pid` and all below it that are alive.

    Without those that are about to run another program: until then their memory is their parent's.
    """
    found = [pid]
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                children = [int(child) for child in (task / "children").read_text().split()]
                found += [member for child in children if _has_begun(child) for member in family(child)]
    return found


def used_bytes(pid: int) -> int:
    """Return the memory of a process and its children; shared memory counts once."""
    private, mapped = 0, 0
    files: dict[tuple[int, int], int] = {}
    for member in family(pid):
        # A child that ends meanwhile has given its memory back.
        with contextlib.suppress(OSError):
            status = dict(
                line.split(":", 1) for line in Path(f"/proc/{member}/status").read_text().splitlines()
            )
            private += _kib(status.get("RssAnon", "0 kB"))
            mapped = max(mapped, _kib(status.get("RssShmem", "0 kB")))
            files |= _memory_files(member)
    return private + max(mapped, sum(files.values()))


def proportional_bytes(pid: int) -> int:
    """Return the same by the kernel's exact account (Pss), which takes it long."""
    total = 0
    for member in family(pid):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{member}/smaps_rollup").read_text().splitlines():
                if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                    total += _kib(line.partition(":")[2])
    return total


class Peak:
    """Watches a process and its children for as long as the block lasts.

    Args:
        pid: of the process.
        meet: called with the process, and with each child when it is first seen.
    """

    def __init__(self, pid: int, meet: Callable[[int], None]) -> None:
        self._pid = pid
        self._meet = meet
        self._met: set[int] = set()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.first_bytes = 0
        """When the block began."""
        self.most_bytes = 0
        """The most seen, looked at every 20 ms."""

    def __enter__(self) -> Self:
        self._look()
        self.first_bytes = self.most_bytes
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(_LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        for member in set(family(self._pid)) - self._met:
            self._met.add(member)
            self._meet(member)
        self.most_bytes = max(self.most_bytes, used_bytes(self._pid))


def _has_begun(pid: int) -> bool:
    flags = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6]
    return not int(flags) & _FORKED_WITHOUT_EXEC


def _kib(text: str) -> int:
    return int(text.split(maxsplit=1)[0]) * 1024


def _memory_files(pid: int) -> dict[tuple[int, int], int]:
    found = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(link).startswith(("/memfd:", "/dev/shm/")):  # noqa: PTH115 - it is no path
                held = link.stat()
                found[held.st_dev, held.st_ino] = held.st_blocks * _BLOCK_BYTES
    return found
