# SPDX-License-Identifier: Apache-2.0
"""The one way in which a signal is sent: through a handle, to a process that was verified, never to a group.

It knows who must never be signalled, but not who should be. Standard library only.
"""

from __future__ import annotations

import errno
import os
import signal

from spotwatch.errors import ActionError
from spotwatch.targets._proc import HIDDEN, Proc, Row, read_row


def refusal(row: Row) -> str:
    """Return why this process must never be signalled; empty when it may."""
    if row.pid <= 1:
        return "it is PID 1"
    if row.is_kernel:
        return "it is a thread of the kernel"
    if row.is_thread:
        return "the number is that of a thread, not of a process"
    if row.pid == os.getpid():
        return "it is this daemon itself"
    if row.pid in ancestors(os.getpid()):
        return "this daemon was started by it"
    return ""


def ancestors(pid: int) -> frozenset[int]:
    """Return the pids above `pid`, as far as they can be seen."""
    above: set[int] = set()
    row = read_row(pid)
    while row is not None and row.ppid > 0 and row.ppid not in above:
        above.add(row.ppid)
        row = read_row(row.ppid)
    return frozenset(above)


def check_signallable(proc: Proc) -> None:
    """Do nothing when we may signal this very process.

    Raises:
        ActionError: it is gone, is another one by now, or the kernel forbids it.
    """
    if not _send(proc, 0):
        raise ActionError(f"pid {proc.pid} exited a moment ago")


def send_signal(proc: Proc, signum: int) -> bool:
    """Send `signum` to this very process, never to its group nor to a later owner of the pid.

    Returns:
        False when it has exited already, which is fine.

    Raises:
        ActionError: user or command line are not what was found, or the kernel forbids it.
    """
    if signum == signal.SIGKILL:
        raise ActionError("SIGKILL is never sent: it would lose the save")
    return _send(proc, signum)


def _send(proc: Proc, signum: int) -> bool:
    if proc.start_ticks == HIDDEN:
        raise ActionError(f"pid {proc.pid} is hidden from us (ProtectProc=), so it cannot be verified")
    try:
        # First the handle, then the look: from here on the number cannot come to mean another process.
        handle = os.pidfd_open(proc.pid)
    except ProcessLookupError:
        return False
    except OSError as error:
        raise ActionError(_cannot_open(proc, error)) from error
    try:
        row = read_row(proc.pid)
        if row is None or row.is_gone or row.proc.start_ticks != proc.start_ticks:
            return False
        if row.is_exiting:
            # The kernel takes the command line away a moment before it says that the process has ended.
            return False
        if reason := refusal(row):
            raise ActionError(f"pid {proc.pid} is not signalled: {reason}")
        if row.proc != proc:
            raise ActionError(f"pid {proc.pid} has another user or command line than a moment ago")
        signal.pidfd_send_signal(handle, signum)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise ActionError(
            f"not allowed to signal pid {proc.pid} of uid {proc.uid}; run the daemon as that user, as root, "
            "or with CAP_KILL: systemd/install.sh --with processes"
        ) from error
    finally:
        os.close(handle)
    return True


def _cannot_open(proc: Proc, error: OSError) -> str:
    mend = {
        errno.ENOSYS: "; Linux 5.3 or later is needed",
        errno.EPERM: "; allow pidfd_open in the seccomp filter",
        errno.EMFILE: "; raise the limit of open files",
    }.get(error.errno or 0, "")
    return f"no handle on pid {proc.pid}: {error.strerror}{mend}"
