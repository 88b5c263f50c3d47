# SPDX-License-Identifier: Apache-2.0
"""Signals as wishes: SIGTERM, SIGUSR1 and SIGINT ask for a save and an end, and interrupt nothing.

Handlers only set flags. What was installed before is called too, and put back at the end. It does not save.
DataLoader workers get a shield of their own in `shield`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

log = logging.getLogger("spotwatch.train")

STOPPING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_INTERRUPTS_TO_ABORT = 3


class StopSignals:
    """Remembers that this process was asked to stop."""

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._pid = os.getpid()
        self._interrupts = 0
        self.name = ""
        """The first signal that came."""
        self.stop = False

    def install(self) -> None:
        """Take the signals over; only the main thread can, others go on without and say so."""
        if self._before:
            return
        if threading.current_thread() is not threading.main_thread():
            log.warning("not in the main thread: SIGTERM is not heard here, only the daemon's files are")
            return
        self._pid = os.getpid()
        for number in STOPPING:
            before = signal.getsignal(number)
            # A job in the background ignores the terminal's SIGINT on purpose.
            if number is signal.SIGINT and before is signal.SIG_IGN:
                continue
            self._before[number] = before
            signal.signal(number, self._handle)

    def restore(self, *, leaving: bool = False) -> None:
        """Put back what was installed before.

        Args:
            leaving: the process ends now because it was told to; the same wish told again on its way out, by
                a signal after an order, must not change the exit status of a save that is durable.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number, before in self._before.items():
            # A handler set by C code reads as None and cannot be set again.
            if signal.getsignal(number) != self._handle or before is None:
                continue
            # Ignored, not handled: Python takes its handlers away a moment before the process is gone.
            keeps_out = leaving and number is not signal.SIGINT
            signal.signal(number, signal.SIG_IGN if keeps_out else before)
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(signal.Signals(number))
        if os.getpid() != self._pid:
            # A child forked from the trainer: the signal is meant for it and means what it meant before.
            signal.signal(number, before if before is not None else signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.name = self.name or signal.Signals(number).name
        self.stop = True
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts >= _INTERRUPTS_TO_ABORT and _at_terminal():
                raise KeyboardInterrupt
        elif callable(before):
            try:
                before(number, frame)
            except (SystemExit, KeyboardInterrupt):
                # It wanted to leave at once. We leave too, after the save that it would have torn.
                return


def _at_terminal() -> bool:
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except ValueError:
        return False
