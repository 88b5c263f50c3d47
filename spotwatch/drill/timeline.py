# SPDX-License-Identifier: Apache-2.0
"""What happens, as lines for people while it happens; on a terminal a last line moves with the progress.

It knows no rehearsal, only who says what. Nothing here is meant to be parsed.
"""

from __future__ import annotations

import shutil
import time
from typing import TextIO

_NAME_WIDTH = 12
_ERASE_LINE = "\r\x1b[2K"


class Timeline:
    """Lines with the seconds since each one's beginning.

    Args:
        out: where to; None: nowhere.
    """

    def __init__(self, out: TextIO | None) -> None:
        self._out = out
        self.moves = out is not None and out.isatty()
        """Progress is shown."""
        self._since: dict[str, float] = {}
        self._progress: dict[str, str] = {}

    def begin(self, who: str) -> None:
        """Count the seconds of `who` from now."""
        self._since[who] = time.monotonic()

    def event(self, who: str, text: str) -> None:
        """Say what has happened."""
        if self._out is None:
            return
        seconds = time.monotonic() - self._since.setdefault(who, time.monotonic())
        self._out.write(f"{self._erase}{who:<{_NAME_WIDTH}} {seconds:+7.2f} s  {text}\n")
        self._show()

    def line(self, text: str) -> None:
        """Say something that is of no moment."""
        if self._out is not None:
            self._out.write(f"{self._erase}{text}\n")
            self._show()

    def progress(self, who: str, text: str) -> None:
        """Say how far `who` has come, where the line can be taken back; empty: it is done."""
        if not self.moves or self._progress.get(who, "") == text:
            return
        self._progress[who] = text
        if not text:
            del self._progress[who]
        self._show()

    @property
    def _erase(self) -> str:
        return _ERASE_LINE if self.moves else ""

    def _show(self) -> None:
        if self._out is None:
            return
        if self.moves:
            shown = " | ".join(f"{who}: {text}" for who, text in self._progress.items())
            self._out.write(_ERASE_LINE + shown[: shutil.get_terminal_size().columns - 1])
        self._out.flush()
