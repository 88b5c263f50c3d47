# SPDX-License-Identifier: Apache-2.0
"""Which process on which machine: how one names itself, and whether another one is certainly gone.

Certain it is only of processes that this one can see: those of the same boot of the same machine, in the same
pid namespace. Of all others it says that they may live. It signals nobody.
"""

from __future__ import annotations

import os
import platform
import secrets
from dataclasses import dataclass
from pathlib import Path

from spotwatch.clock import read_boot_id

MOST_PID = 2**22
"""The kernel's own limit, PID_MAX_LIMIT (proc_sys_kernel(5), `pid_max`)."""
_UNKNOWN = 0
# Fields of /proc/PID/stat behind the name (proc_pid_stat(5)): number 3, and number 22 in ticks since boot.
_STATE = 0
_START_TICKS = 19
# A zombie has ended, but nobody has asked how; X and x were never more than a moment.
_ENDED_STATES = frozenset("ZXx")


def new_writer() -> str:
    """Return a name for what this process writes, `host:pid:random`; another one at each call."""
    # Host and process repeat, in containers always: the rest makes it this one and no other.
    return f"{platform.node()}:{os.getpid()}:{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One process, told apart from every other of any machine.

    Args:
        writer: `host:pid:random`; another one for each lease, also within a process.
        host: its name.
        pid: in its own namespace.
        boot_id: the kernel's, of this boot.
        pid_namespace: inode of `/proc/self/ns/pid`; 0: unknown.
        start_ticks: when the process started, in clock ticks since boot; 0: unknown.
    """

    writer: str
    host: str
    pid: int
    boot_id: str
    pid_namespace: int
    start_ticks: int

    @classmethod
    def here(cls, writer: str = "") -> Owner:
        """Return this very process.

        Args:
            writer: empty: a new one is made.
        """
        pid = os.getpid()
        facts = _facts("self")
        return cls(
            writer=writer or new_writer(),
            host=platform.node(),
            pid=pid,
            boot_id=read_boot_id(),
            pid_namespace=_namespace(pid),
            start_ticks=facts[1] if facts else _UNKNOWN,
        )

    def sees(self, other: Owner) -> bool:
        """Tell whether `other` was, or is, a process that this one would find by its pid."""
        # The host's name beside the boot: machines cloned with their memory have the latter in common.
        return self.pid_namespace != _UNKNOWN and (self.host, self.boot_id, self.pid_namespace) == (
            other.host,
            other.boot_id,
            other.pid_namespace,
        )

    def is_in(self, other: Owner) -> bool:
        """Tell whether both are the same process, whatever their writers."""
        return (
            self.sees(other)
            and self.start_ticks != _UNKNOWN
            and (self.pid, self.start_ticks) == (other.pid, other.start_ticks)
        )

    def knows_gone(self, other: Owner) -> bool:
        """Tell whether `other` has certainly ended; False also when that cannot be known from here."""
        if not self.sees(other) or not 0 < other.pid <= MOST_PID:
            return False
        try:
            # Before /proc, which may be mounted such that other users' processes are not shown (hidepid).
            os.kill(other.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass  # it is another user's
        facts = _facts(str(other.pid))
        if facts is None or other.start_ticks == _UNKNOWN:
            return False
        state, start_ticks = facts
        return state in _ENDED_STATES or start_ticks != other.start_ticks


def _facts(process: str) -> tuple[str, int] | None:
    try:
        text = Path("/proc", process, "stat").read_text(encoding="utf-8", errors="replace")
        # The name may hold blanks and parentheses: only after the last one do fields count.
        fields = text.rpartition(")")[2].split()
        return fields[_STATE], int(fields[_START_TICKS])
    except (OSError, ValueError, IndexError):
        return None


def _namespace(pid: int) -> int:
    try:
        # A /proc of another namespace numbers processes otherwise: by it nobody could be found.
        if Path("/proc/self").readlink() != Path(str(pid)):
            return _UNKNOWN
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return _UNKNOWN
