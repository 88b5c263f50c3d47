# SPDX-License-Identifier: Apache-2.0
"""A directory as a checkpoint store: each object is a file that appears whole.

Whether it outlives the machine is the user's choice.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from spotwatch.errors import CheckpointCorrupt, StoreConflict, StoreError, StoreMissing
from spotwatch.train import attendance
from spotwatch.train.parts import Body, crc32
from spotwatch.train.store import CHUNK_BYTES, Entry, OnPart
from spotwatch.train.stores.dir_files import (
    TEMPORARY,
    is_left_over,
    make_durably,
    new_file,
    refused,
    take_place,
    told,
    write_all,
)
from spotwatch.train.stores.dir_locks import LOCK, are_shared, locked
from spotwatch.train.stores.dir_unfit import why_unfit
from spotwatch.train.stores.pacing import Pace
from spotwatch.train.stores.probe import probe

log = logging.getLogger("spotwatch.train")

# In the place of an object there is a directory or a loop of links, or a file where its directory belongs.
_NO_OBJECT = frozenset({errno.EISDIR, errno.ELOOP, errno.ENOTDIR})
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK})


class DirectoryStore:
    """Keeps each object as a file below `root`.

    Args:
        root: the directory of one run; made when first written to.
        pace: of uploads; None: no limit.
    """

    def __init__(self, root: Path, pace: Pace | None = None) -> None:
        self.root = root
        self._pace = pace or Pace(None)
        self._lock = threading.Lock()
        self._is_conditional: bool | None = None

    @property
    def url(self) -> str:
        """Return the root as a file URL."""
        return self.root.as_uri()

    @property
    def is_conditional(self) -> bool:
        """Tell whether the file system has locks that other machines see.

        Raises:
            ConfigError: the root can be no store until the user changes something.
            StoreError: the file system refuses, perhaps only for now.
        """
        with self._lock:
            if self._is_conditional is None:
                try:
                    self._is_conditional = probe(self) and are_shared(self.root)
                except StoreError as error:
                    if unfit := why_unfit(self.root, error):
                        raise unfit from error
                    raise
            return self._is_conditional

    def put(self, key: str, body: bytes) -> None:
        """Store `body` whole and durably."""
        path = self.root / key
        with new_file(path) as (fd, temporary), told(f"write {path}"):
            write_all(fd, body)
            os.fsync(fd)
            take_place(temporary, path)

    def put_if(self, key: str, body: bytes, version: str | None) -> str:
        """Store `body` under the lock of the root and return its version."""
        path = self.root / key
        with told(f"write {path}"):
            make_durably(self.root)
            with new_file(path) as (fd, temporary):
                # Before the lock: a process that is stopped while it has that holds up all others.
                write_all(fd, body)
                os.fsync(fd)
                with locked(self.root):
                    before = self._facts(path)
                    if version is not None if before is None else not self._is(path, before, version):
                        raise StoreConflict(f"{path} was written by another")
                    made = os.fstat(fd)
                    if before and made.st_mtime_ns <= before.st_mtime_ns:
                        # The kernel's clock for files ticks every few milliseconds; inodes are used again.
                        os.utime(fd, ns=(made.st_atime_ns, before.st_mtime_ns + 1))
                    if before:
                        take_place(temporary, path)
                    else:
                        _create(temporary, path)
                    return _version(body, os.fstat(fd))

    def get(self, key: str, *, most_bytes: int) -> bytes:
        """Return the whole object."""
        return self.read(key, most_bytes=most_bytes)[0]

    def read(self, key: str, *, most_bytes: int) -> tuple[bytes, str]:
        """Return the whole object and its version."""
        path = self.root / key
        with self._open(path) as fd:
            facts = os.fstat(fd)
            if facts.st_size > most_bytes:
                raise CheckpointCorrupt(f"{path} has more than {most_bytes} bytes")
            body = bytearray(facts.st_size)
            self._fill(fd, path, 0, memoryview(body))
        return bytes(body), _version(body, facts)

    def prepare(self, size_bytes: int) -> None:
        """Do nothing: a directory is there."""

    def upload(self, key: str, body: Body, on_part: OnPart) -> tuple[str, ...]:
        """Write a large body part by part, its checksums beside it, and compare the size of the file."""
        path = self.root / key
        crcs: list[str] = []
        with new_file(path) as (fd, temporary), ThreadPoolExecutor(1, "spotwatch-crc") as pool:
            sent_bytes = 0
            for part in body.parts():
                self._pace.wait(len(part))
                crc = pool.submit(crc32, part)
                with told(f"write {path}"):
                    write_all(fd, part)
                crcs.append(crc.result())
                sent_bytes += len(part)
                on_part(sent_bytes)
            with told(f"write {path}"):
                os.fsync(fd)
                size = os.fstat(fd).st_size
                if size != body.size_bytes:
                    raise StoreError(f"{path} got {size} bytes instead of {body.size_bytes}; save again")
                take_place(temporary, path)
        return tuple(crcs)

    def read_into(self, key: str, begin: int, target: memoryview) -> None:
        """Fill `target` from the file."""
        path = self.root / key
        with self._open(path) as fd:
            self._fill(fd, path, begin, target)

    def size_bytes(self, key: str) -> int:
        """Return the size of the file."""
        path = self.root / key
        try:
            facts = path.stat()
        except OSError as error:
            raise self._unreadable(path, error) from error
        _expect_file(path, facts)
        return facts.st_size

    def list(self) -> Iterator[Entry]:
        """Yield every file below the root, left-over temporary ones included."""
        if not self.root.exists():
            return

        def fail(error: OSError) -> None:
            # A directory that a pruner removes while we walk is no trouble.
            if error.errno != errno.ENOENT:
                raise refused(f"list {self.root}", error) from error

        for folder, _, names in os.walk(self.root, onerror=fail):
            for name in names:
                path = Path(folder, name)
                if path == self.root / LOCK:
                    continue
                with contextlib.suppress(FileNotFoundError):
                    yield Entry(path.relative_to(self.root).as_posix(), path.lstat().st_size)

    def delete(self, key: str) -> None:
        """Remove the file, and its directory when that is empty now."""
        path = self.root / key
        with told(f"delete {path}"):
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                return
        if path.parent != self.root:
            with contextlib.suppress(OSError):
                path.parent.rmdir()

    def remove(self) -> None:
        """Remove the root, lock included, once it holds nothing else; nobody may be using it."""
        with told(f"remove {self.root}"):
            if not any(self.list()):
                (self.root / LOCK).unlink(missing_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    self.root.rmdir()

    def abort_uploads(self) -> int:
        """Remove the temporary files that nobody finishes any more; return how many."""
        removed = 0
        for entry in self.list():
            with contextlib.suppress(FileNotFoundError):
                if entry.key.endswith(TEMPORARY) and is_left_over(self.root / entry.key, time.time()):
                    self.delete(entry.key)
                    removed += 1
        return removed

    def close(self) -> None:
        """Do nothing: no file is kept open."""

    @contextlib.contextmanager
    def _open(self, path: Path) -> Iterator[int]:
        try:
            # A pipe that nobody writes to would hold us for ever.
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise self._unreadable(path, error) from error
        try:
            _expect_file(path, os.fstat(fd))
            yield fd
        except OSError as error:
            raise self._unreadable(path, error) from error
        finally:
            os.close(fd)

    def _fill(self, fd: int, path: Path, begin: int, target: memoryview) -> None:
        at = 0
        while at < len(target):
            count = os.preadv(fd, [target[at : at + CHUNK_BYTES]], begin + at)
            attendance.moved()
            if not count:
                raise CheckpointCorrupt(f"{path} ends at byte {begin + at}, too early")
            at += count

    def _facts(self, path: Path) -> os.stat_result | None:
        try:
            return path.stat()
        except FileNotFoundError:
            return None

    def _is(self, path: Path, facts: os.stat_result, version: str | None) -> bool:
        # The body is read only when all else agrees; then it is as small as the one whose version it was.
        if version is None or not version.endswith(_traits(facts)):
            return False
        return self.read(path.relative_to(self.root).as_posix(), most_bytes=facts.st_size)[1] == version

    def _unreadable(self, path: Path, error: OSError) -> StoreError:
        # Below a sound root it is one damaged object; else it is trouble with the store as a whole.
        if error.errno in _NO_OBJECT and self.root.is_dir():
            return CheckpointCorrupt(f"{path} is no file: {error.strerror}")
        told_error = refused(f"read {path}", error)
        return StoreMissing(str(told_error)) if isinstance(error, FileNotFoundError) else told_error


def _create(temporary: Path, path: Path) -> None:
    # A link is refused by the file server itself when the name is taken, whatever its locks are worth.
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        # A first answer of a file server may be lost, and the second says that the name is taken: by us.
        if temporary.stat().st_nlink != 2:  # noqa: PLR2004 - its own name and the new one
            raise StoreConflict(f"{path} was written by another") from error
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        temporary.rename(path)


def _version(body: bytes | bytearray, facts: os.stat_result) -> str:
    return f"{crc32(body)}{_traits(facts)}"


def _traits(facts: os.stat_result) -> str:
    return f"-{facts.st_size}-{facts.st_ino}-{facts.st_mtime_ns}"


def _expect_file(path: Path, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise CheckpointCorrupt(f"{path} is no file")
