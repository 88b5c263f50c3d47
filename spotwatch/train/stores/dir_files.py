# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole and stay: temporary file, fsync, rename, fsync of the directory.

It knows which temporary files nobody finishes. It expects a file system that keeps what fsync promised.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

from spotwatch.clock import read_boot_id
from spotwatch.errors import StoreError
from spotwatch.train.parts import crc32

TEMPORARY = ".tmp"
_STALE_SECONDS = 3600.0
_MADE_BY = re.compile(r"\.(?P<machine>[0-9a-f]{8})-(?P<pid>[0-9]+)-[0-9a-f]{8}\.tmp$")
_TRIES = 10


@contextlib.contextmanager
def told(deed: str) -> Iterator[None]:
    """Raise what the operating system refuses as `StoreError`."""
    try:
        yield
    except OSError as error:
        raise refused(deed, error) from error


def refused(deed: str, error: OSError) -> StoreError:
    """Return what to raise when `deed`, as `write /x`, was refused."""
    return StoreError(f"cannot {deed}: {error.strerror or error}")


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[tuple[int, Path]]:
    """Give a descriptor of a new file beside `path`, and its temporary name.

    Whoever asked writes it and gives it its place; then that is made durable. A file that still has its
    temporary name at the end is removed.

    Raises:
        StoreError: there can be no such file.
    """
    temporary = path.with_name(f"{path.name}.{_machine()}-{os.getpid()}-{uuid.uuid4().hex[:8]}{TEMPORARY}")
    with told(f"write {path}"):
        fd = _open_new(temporary)
    try:
        try:
            yield fd, temporary
        finally:
            os.close(fd)
        with told(f"write {path}"):
            sync(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_all(fd: int, body: bytes | memoryview) -> None:
    """Write every byte; the kernel takes at most 2 GiB at a time."""
    view = memoryview(body)
    while view:
        view = view[os.write(fd, view) :]


def take_place(temporary: Path, path: Path) -> None:
    """Give `temporary` its name, over whatever has it now."""
    if path.is_dir() and not path.is_symlink():
        # Nothing of ours: put aside, for without it no save could ever succeed again.
        path.rename(path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{TEMPORARY}"))
    temporary.rename(path)


def make_durably(folder: Path) -> None:
    """Make a directory and those above it, and have their names on the disk."""
    if folder.is_dir():
        return
    make_durably(folder.parent)
    folder.mkdir(exist_ok=True)
    sync(folder.parent)


def sync(folder: Path) -> None:
    """Have the names in `folder` on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some network file systems know no fsync of a directory; their rename is as durable as it gets.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def is_left_over(path: Path, now: float) -> bool:
    """Tell whether `path` is a temporary file that nobody finishes: its process died, or an hour has passed.

    Args:
        path: of a file.
        now: seconds since the epoch.
    """
    if not path.name.endswith(TEMPORARY):
        return False
    made_by = _MADE_BY.search(path.name)
    if made_by and made_by["machine"] == _machine() and not Path("/proc", made_by["pid"]).exists():
        return True
    return now - path.lstat().st_mtime > _STALE_SECONDS


def _open_new(temporary: Path) -> int:
    for tries_left in range(_TRIES - 1, -1, -1):
        try:
            make_durably(temporary.parent)
            return os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            # Somebody deleted the last object of the directory, and the directory with it.
            if not tries_left:
                raise
    raise AssertionError


def _machine() -> str:
    # Process ids mean something within one boot and one namespace of ids. Containers share the former, and
    # machines cloned with their memory have it in common.
    try:
        namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - Path.readlink makes it a path
    except OSError:
        namespace = ""
    return crc32(f"{platform.node()} {read_boot_id()} {namespace}".encode())
