# SPDX-License-Identifier: Apache-2.0
"""A directory as a checkpoint store: temporary file, fsync, rename, fsync of the directory.

It expects a file system that keeps what fsync promised; whether it outlives the machine is the user's choice.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

from spotwatch.errors import CheckpointCorrupt, StoreError, StoreMissing
from spotwatch.train.pacing import Pace
from spotwatch.train.store import CHUNK_BYTES, Entry

_TEMPORARY = ".tmp"
# In the place of an object there is a directory or a loop of links, or a file where its directory belongs.
_NO_OBJECT = frozenset({errno.EISDIR, errno.ELOOP, errno.ENOTDIR})


class DirectoryStore:
    """Keeps each object as a file below `root`.

    Args:
        root: the directory of one run; made when first written to.
        pace: of uploads; None: no limit.
    """

    def __init__(self, root: Path, pace: Pace | None = None) -> None:
        self.root = root
        self._pace = pace or Pace(None)

    @property
    def url(self) -> str:
        """Return the root as a file URL."""
        return self.root.as_uri()

    def put(self, key: str, body: bytes | memoryview) -> None:
        """Store `body` whole and durably."""
        path = self.root / key
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{_TEMPORARY}")
        try:
            _make_durably(path.parent)
            try:
                with temporary.open("xb", buffering=0) as file:
                    view = memoryview(body)
                    while view:
                        view = view[file.write(view[:CHUNK_BYTES]) :]
                    os.fsync(file.fileno())
                if path.is_dir() and not path.is_symlink():
                    # Nothing of ours: put aside, for without it no save could ever succeed again.
                    path.rename(path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{_TEMPORARY}"))
                temporary.rename(path)
            except BaseException:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                raise
            _sync(path.parent)
        except OSError as error:
            raise _refused(f"write {path}", error) from error

    def get(self, key: str, *, most_bytes: int) -> bytes:
        """Return the whole object."""
        if self.size_bytes(key) > most_bytes:
            raise CheckpointCorrupt(f"{self.root / key} has more than {most_bytes} bytes")
        return b"".join(self.stream(key))

    def stream(self, key: str) -> Iterator[bytes]:
        """Yield the object in pieces."""
        path = self.root / key
        try:
            # A pipe that nobody writes to would hold us for ever.
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb", buffering=0) as file:  # noqa: PTH123 - a Path cannot open what is open
                _expect_file(path, os.fstat(fd))
                while piece := file.read(CHUNK_BYTES):
                    yield piece
        except OSError as error:
            raise self._unreadable(path, error) from error

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
                raise _refused(f"list {self.root}", error) from error

        for folder, _, names in os.walk(self.root, onerror=fail):
            for name in names:
                path = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    yield Entry(path.relative_to(self.root).as_posix(), path.lstat().st_size)

    def delete(self, key: str) -> None:
        """Remove the file, and its directory when that is empty now."""
        path = self.root / key
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _refused(f"delete {path}", error) from error
        if path.parent != self.root:
            with contextlib.suppress(OSError):
                path.parent.rmdir()

    def _unreadable(self, path: Path, error: OSError) -> StoreError:
        # Below a sound root it is one damaged object; else it is trouble with the store as a whole.
        if error.errno in _NO_OBJECT and self.root.is_dir():
            return CheckpointCorrupt(f"{path} is no file: {error.strerror}")
        return _refused(f"read {path}", error)


def _expect_file(path: Path, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise CheckpointCorrupt(f"{path} is no file")


def _make_durably(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_durably(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync(folder.parent)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some network file systems know no fsync of a directory; their rename is as durable as it gets.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def _refused(deed: str, error: OSError) -> StoreError:
    text = f"cannot {deed}: {error.strerror or error}"
    return StoreMissing(text) if isinstance(error, FileNotFoundError) else StoreError(text)
