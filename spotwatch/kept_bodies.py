# SPDX-License-Identifier: Apache-2.0
"""Answers that could not be understood, kept for inspection: few, small, and readable by us alone.

What anybody may have written is kept apart, so that it displaces nothing else. It does not judge what is
malformed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

FOLDER = "malformed"
MAX_FILES = 20
MAX_UNPROVEN = 10
MAX_BYTES = 64 * 1024


_UNPROVEN = "-unproven-"


class KeptBodies:
    """A folder of at most 20 bodies of at most 64 KiB, mode 0600, and 10 without proof; the oldest go first.

    Args:
        state_dir: None keeps nothing.
    """

    def __init__(self, state_dir: Path | None) -> None:
        self._folder = None if state_dir is None else state_dir / FOLDER
        self._count = 0

    def keep(self, provider: str, signal: str, body: bytes, *, is_proven: bool = True) -> str:
        """Keep `body` and return the name of its file; empty when there is nothing to keep or no place.

        Args:
            provider: whose answer it is.
            signal: which of its answers.
            body: as it came.
            is_proven: whether it is known who wrote it.
        """
        if self._folder is None or not body:
            return ""
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            found = sorted(self._folder.iterdir(), key=lambda path: path.lstat().st_mtime)
            kept = [path for path in found if (_UNPROVEN in path.name) != is_proven]
            for old in kept[: max(0, len(kept) - (MAX_FILES if is_proven else MAX_UNPROVEN) + 1)]:
                old.unlink()
            stem = f"{provider}-{signal}{'-' if is_proven else _UNPROVEN}{os.getpid()}"
            name = self._free_name(stem, {path.name for path in found})
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(self._folder / name, flags, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(body[:MAX_BYTES])
            return name
        return ""

    def _free_name(self, stem: str, taken: Collection[str]) -> str:
        """Return a name of this life; in a container an earlier one had the same process id."""
        while True:
            self._count += 1
            if (name := f"{stem}-{self._count}.body") not in taken:
                return name
