# SPDX-License-Identifier: Apache-2.0
"""Small files that others may have touched: read without being fooled, written so that no part is ever seen.

No link is followed, no pipe waited for, no size trusted. It does not know what is in the files.
Standard library only.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import stat
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path

from spotwatch.errors import HandshakeError

MAX_BYTES = 64 * 1024
MAX_ENTRIES = 10_000
"""So many entries of a folder are looked at: whoever may write there must not hold us up for long."""


def list_json_files(folder: Path, limit: int) -> list[Path]:
    """Return at most `limit` `*.json` entries of `folder` by name; empty when it is missing."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(e.name for e in entries if e.name.endswith(".json") and not e.name.startswith("."))
    except OSError:
        return []
    return [folder / name for name in names[:limit]]


def list_newest_json_files(
    folder: Path, limit: int, *, owners: Collection[int]
) -> tuple[list[tuple[Path, os.stat_result]], bool]:
    """Return `*.json` entries of `folder`, by name, each with its own facts, and whether there are more.

    Args:
        folder: may be missing.
        limit: of more, the newest are returned, as many of each owner; so that nobody hides another's.
        owners: whose files come first; those of others fill what room is left.
    """
    found: dict[int, list[tuple[int, str, os.stat_result]]] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in itertools.islice(entries, MAX_ENTRIES):
            if not entry.name.endswith(".json") or entry.name.startswith("."):
                continue
            with contextlib.suppress(FileNotFoundError):
                facts = entry.stat(follow_symlinks=False)
                found.setdefault(facts.st_uid, []).append((facts.st_mtime_ns, entry.name, facts))
    ranked = [
        (uid not in owners, rank, name, facts)
        for uid, files in found.items()
        for rank, (_, name, facts) in enumerate(heapq.nlargest(limit, files, key=lambda one: one[:2]))
    ]
    first = heapq.nsmallest(limit, ranked, key=lambda one: one[:3])
    are_more = sum(map(len, found.values())) > limit
    return [(folder / name, facts) for _, _, name, facts in sorted(first, key=lambda one: one[2])], are_more


def read_small_file(path: Path, *, limit: int = MAX_BYTES) -> bytes | None:
    """Return the bytes of a regular file, None when there is none.

    Raises:
        HandshakeError: it is a link, no regular file, over `limit` bytes, or cannot be read.
    """
    read = read_owned_file(path, limit=limit)
    return None if read is None else read[0]


def read_owned_file(path: Path, *, limit: int = MAX_BYTES) -> tuple[bytes, int] | None:
    """Return the bytes and the owner's uid of a regular file; otherwise as `read_small_file`."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HandshakeError(f"cannot read {path}: {error.strerror}") from error
    try:
        facts = os.fstat(fd)
        # Before fdopen, which raises on a directory and leaves its descriptor open.
        if not stat.S_ISREG(facts.st_mode):
            raise HandshakeError(f"{path} is not a regular file")
        if facts.st_size > limit:
            raise HandshakeError(f"{path} has {facts.st_size} bytes, more than {limit}")
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(limit), facts.st_uid
    except OSError as error:
        raise HandshakeError(f"cannot read {path}: {error.strerror}") from error
    finally:
        os.close(fd)


def write_atomically(
    path: Path, body: bytes, *, mode: int = 0o640, owner: tuple[int, int] | None = None
) -> None:
    """Put `body` at `path` so that a reader sees the old content or the new, never a part.

    Args:
        path: a link there is replaced, never followed.
        body: the whole content.
        mode: of the new file, whatever the umask.
        owner: (uid, gid) of the new file, set before it appears; None leaves ours.

    Raises:
        HandshakeError: it could not be written; what was there is untouched.
    """
    with _complete_temporary(path, body, mode, owner) as temporary:
        temporary.rename(path)


def create_exclusively(
    path: Path, body: bytes, *, mode: int = 0o640, owner: tuple[int, int] | None = None
) -> bool:
    """Put `body` at `path`, complete from its first moment, unless something is there already.

    Returns:
        False when `path` exists in any form; nothing was changed then.

    Raises:
        HandshakeError: it could not be written.
    """
    with _complete_temporary(path, body, mode, owner) as temporary:
        try:
            os.link(temporary, path, follow_symlinks=False)
        except FileExistsError:
            return False
        return True


def remove_if_there(path: Path) -> bool:
    """Remove the file (or link) at `path`; tell whether there was one.

    Raises:
        HandshakeError: it is a directory or may not be removed.
    """
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise HandshakeError(f"cannot remove {path}: {error.strerror}") from error
    return True


@contextlib.contextmanager
def _complete_temporary(path: Path, body: bytes, mode: int, owner: tuple[int, int] | None) -> Iterator[Path]:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(body)
            file.flush()
            # The mode first: what was given away is no longer ours to change, unless we are root.
            os.fchmod(fd, mode)
            if owner is not None:
                os.fchown(fd, *owner)
        yield temporary
    except OSError as error:
        raise HandshakeError(f"cannot write {path}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
