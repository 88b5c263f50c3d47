# SPDX-License-Identifier: Apache-2.0
"""How much memory may be taken: by the machine's own count, and by the control groups of both versions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spotwatch.train.state import room

GIB = 2**30


class Machine:
    """The kernel's files of a machine that is made up."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        self.write(self.proc / "meminfo", f"MemTotal: 99 kB\nMemAvailable:  {20 * GIB // 1024} kB\n")

    def write(self, path: Path, text: str) -> None:
        """Put a file there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def in_groups(self, text: str) -> None:
        """Say which groups the process is in."""
        self.write(self.proc / "self/cgroup", text)

    def v2(self, path: str, limit: str, use: int, cache: int = 0) -> None:
        """Make a group of version 2."""
        folder = self.cgroups / path
        self.write(folder / "memory.max", f"{limit}\n")
        self.write(folder / "memory.current", f"{use}\n")
        self.write(folder / "memory.stat", f"anon 7\ninactive_file {cache}\nactive_file 0\n")

    def v1(self, path: str, limit: int, use: int, cache: int = 0) -> None:
        """Make a group of version 1."""
        folder = self.cgroups / "memory" / path
        self.write(folder / "memory.limit_in_bytes", f"{limit}\n")
        self.write(folder / "memory.usage_in_bytes", f"{use}\n")
        self.write(folder / "memory.stat", f"cache 5\ninactive_file 1\ntotal_inactive_file {cache}\n")

    @property
    def available(self) -> int:
        """Return what is available there."""
        return room.available_bytes(self.proc, self.cgroups)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a machine with 20 GiB."""
    return Machine(tmp_path)


def test_without_groups_the_machine_counts(machine: Machine) -> None:
    """On a plain machine it is what the kernel says can be had without swapping."""
    assert machine.available == 20 * GIB


def test_a_group_without_a_limit_takes_nothing_away(machine: Machine) -> None:
    """`max` is no limit."""
    machine.in_groups("0::/user.slice\n")
    machine.v2("user.slice", "max", 3 * GIB)
    assert machine.available == 20 * GIB


def test_the_tightest_group_on_the_way_up_counts(machine: Machine) -> None:
    """A pod's limit holds although its container has none."""
    machine.in_groups("0::/pods/pod/container\n")
    machine.v2("pods/pod/container", "max", GIB)
    machine.v2("pods/pod", str(8 * GIB), 3 * GIB)
    machine.v2("pods", str(30 * GIB), 10 * GIB)
    assert machine.available == 5 * GIB


def test_files_that_are_only_cached_do_not_count_as_used(machine: Machine) -> None:
    """A loader that reads data fills the group with cache up to its limit; that memory can be had."""
    machine.in_groups("0::/\n")
    machine.v2("", str(8 * GIB), 8 * GIB, cache=6 * GIB)
    assert machine.available == 6 * GIB


def test_version_one_is_read_too(machine: Machine) -> None:
    """Older systems have a hierarchy for memory alone."""
    machine.in_groups("9:cpu:/a\n4:memory:/a/b\n0::/\n")
    machine.v1("a/b", 4 * GIB, 2 * GIB, cache=GIB)
    machine.v1("a", 2**63 - 4096, 2 * GIB)
    assert machine.available == 3 * GIB


def test_a_container_finds_its_group_at_the_root(machine: Machine) -> None:
    """The path is the host's there, and the group that is mounted is our own."""
    machine.in_groups("4:memory:/docker/4711\n")
    machine.v1("", 2 * GIB, GIB)
    assert machine.available == GIB


def test_more_in_use_than_allowed_is_nothing_left(machine: Machine) -> None:
    """A limit that was lowered under a running group gives no negative number."""
    machine.in_groups("0::/\n")
    machine.v2("", str(GIB), 2 * GIB)
    assert machine.available == 0


def test_a_system_that_tells_nothing_knows_no_limit(tmp_path: Path) -> None:
    """Where there is no /proc, the system's own refusal is what is left."""
    assert room.available_bytes(tmp_path, tmp_path) == sys.maxsize


def test_this_machine_has_some() -> None:
    """The real files of this kernel are understood."""
    assert 2**20 < room.available_bytes() < 2**50
