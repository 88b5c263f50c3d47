# SPDX-License-Identifier: Apache-2.0
"""Something small that is kept in memory and, whenever it has changed, in a file that outlives a restart.

It does not know what is kept. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spotwatch.errors import HandshakeError
from spotwatch.safe_files import MAX_BYTES, read_small_file, write_atomically


class KeptState:
    """The file of one state, mode 0600, written only when there is something new.

    Args:
        path: None: memory only.
        to_bytes: returns the state as it is now; called in the thread that saves.
        limit: bytes that are read back.
    """

    def __init__(self, path: Path | None, to_bytes: Callable[[], bytes], *, limit: int = MAX_BYTES) -> None:
        self.path = path
        self._to_bytes = to_bytes
        self._limit = limit
        self._changes = 0
        self._saved_changes = 0
        self.problem = ""
        """Why the file could not be read or written; empty when it could."""

    def read(self) -> bytes | None:
        """Return what the file holds; None when there is none, or none is wanted.

        Raises:
            HandshakeError: it is a link, no regular file, too large, or cannot be read.
        """
        return None if self.path is None else read_small_file(self.path, limit=self._limit)

    def changed(self) -> None:
        """Say that the state is not any more what the file holds."""
        self._changes += 1

    def save(self) -> bool:
        """Write what has changed; tell whether all is on disk, or none is wanted there.

        May run in a thread beside changes, but only one at a time: what changes meanwhile is saved next time.
        """
        if self.path is None or self._saved_changes == self._changes:
            return True
        changes = self._changes
        try:
            write_atomically(self.path, self._to_bytes(), mode=0o600)
        except HandshakeError as error:
            self.problem = str(error)
            return False
        self._saved_changes = changes
        self.problem = ""
        return True
