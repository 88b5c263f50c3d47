# SPDX-License-Identifier: Apache-2.0
"""One process at a time in a directory, and whether the file system means it for other machines too.

It changes no files but its lock, which stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from spotwatch.errors import StoreError
from spotwatch.train.stores.probe import NotConditional

LOCK = ".lock"
_PATIENCE_SECONDS = 20.0
_POLL_SECONDS = 0.01
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL})
# Each machine has locks of its own in them: buckets behind FUSE, the host's files in a virtual machine.
_LOCAL_TYPES = ("fuse", "9p", "virtiofs")
# nfs(5), "local_lock"; mount.lustre(8), "localflock".
_LOCAL_OPTIONS = frozenset({"local_lock=all", "local_lock=flock", "localflock", "nolock"})


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep every other thread, process and machine out of the same block.

    Raises:
        StoreError: somebody has been inside for 20 s.
        NotConditional: the file system has no locks.
    """
    fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    try:
        _take(fd, folder / LOCK)
        try:
            yield
        finally:
            # Closing would not do: a process forked meanwhile has the descriptor too.
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def are_shared(folder: Path) -> bool:
    """Tell whether a lock in `folder` also keeps other machines out, as far as the mount says."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
        device = folder.stat().st_dev
    except OSError:
        return True
    return not is_local(mounts, f"{os.major(device)}:{os.minor(device)}")


def is_local(mounts: str, device: str) -> bool:
    """Tell whether locks on `device` (`major:minor`) hold for this machine alone, by /proc/self/mountinfo."""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split()[2:3] != [device]:
            continue
        kind, _, options = [*rest.split(), "", "", ""][:3]
        if kind.startswith(_LOCAL_TYPES) or _LOCAL_OPTIONS.intersection(options.split(",")):
            return True
    return False


def _take(fd: int, path: Path) -> None:
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > until:
                raise StoreError(
                    f"{path} has been locked for {_PATIENCE_SECONDS:.0f} s; see who holds it: fuser {path}"
                ) from error
            time.sleep(_POLL_SECONDS)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                raise NotConditional(f"{path} cannot be locked: {error.strerror}") from error
            raise
        else:
            return
