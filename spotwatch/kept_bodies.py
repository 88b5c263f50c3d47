# SPDX-License-Identifier: Apache-2.0
"""Answers that could not be understood, kept for inspection: few, small, and readable by us alone.

It does not judge what is malformed.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

FOLDER = "malformed"
MAX_FILES = 20
MAX_BYTES = 64 * 1024


class KeptBodies:
    """A folder of at most 20 bodies of at most 64 KiB, mode 0600; the oldest go first.

    Args:
        state_dir: None keeps nothing.
    """

    def __init__(self, state_dir: Path | None) -> None:
        self._folder = None if state_dir is None else state_dir / FOLDER
        self._count = 0

    def keep(self, provider: str, signal: str, body: bytes) -> str:
        """Keep `body` and return the name of its file; empty when there is nothing to keep or no place."""
        if self._folder is None or not body:
            return ""
        self._count += 1
        name = f"{provider}-{signal}-{os.getpid()}-{self._count}.body"
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            kept = sorted(self._folder.iterdir(), key=lambda path: path.lstat().st_mtime)
            for old in kept[: max(0, len(kept) - MAX_FILES + 1)]:
                old.unlink()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(self._folder / name, flags, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(body[:MAX_BYTES])
            return name
        return ""
