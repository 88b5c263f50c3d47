# SPDX-License-Identifier: Apache-2.0
"""Signals as wishes: SIGTERM, SIGUSR1 and SIGINT ask for a save and an end, and interrupt nothing.

Handlers only set flags. What was installed before is called too, and put back at the end, in whatever order
several of us end; what it raises is told then, and tears no step. It does not save.
DataLoader workers get a shield of their own in `shield`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
from types import FrameType
from typing import Any

log = logging.getLogger("spotwatch.train")

STOPPING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_INTERRUPTS_TO_ABORT = 3


class StopSignals:
    """Remembers that this process was asked to stop."""

    def __init__(self) -> None:
        self._taken: list[_Taken] = []
        self._raised: dict[str, str] = {}
        self._interrupts = 0
        self.name = ""
        """The first signal that came."""
        self.stop = False

    def install(self) -> None:
        """Take the signals over; only the main thread can, others go on without and say so."""
        if self._taken:
            return
        if threading.current_thread() is not threading.main_thread():
            log.warning("not in the main thread: SIGTERM is not heard here, only the daemon's files are")
            return
        for number in STOPPING:
            # A job in the background ignores the terminal's SIGINT on purpose.
            if number is signal.SIGINT and signal.getsignal(number) is signal.SIG_IGN:
                continue
            taken = _Taken(self, number)
            self._taken.append(taken)
            signal.signal(number, taken)

    def restore(self, *, leaving: bool = False) -> None:
        """Put back what was installed before, and tell what it raised.

        Args:
            leaving: the process ends now because it was told to; the same wish told again on its way out, by
                a signal after an order, must not change the exit status of a save that is durable.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for taken in self._taken:
            # Ignored, not handled: Python takes its handlers away a moment before the process is gone.
            taken.give_back(ignores=leaving and taken.number is not signal.SIGINT)
        self._taken.clear()
        # Only now: a signal may come in the middle of a line of the log, and a log within it could block.
        for name, text in self._raised.items():
            log.warning("the program's own handler of %s raised, and was passed over:\n%s", name, text)
        self._raised.clear()

    def hear(self, number: signal.Signals) -> None:
        """Take a signal as a wish.

        Raises:
            KeyboardInterrupt: someone at the terminal insists.
        """
        self.name = self.name or number.name
        self.stop = True
        if number is signal.SIGINT:
            self._interrupts += 1
            if self._interrupts >= _INTERRUPTS_TO_ABORT and _at_terminal():
                raise KeyboardInterrupt

    def note(self, number: signal.Signals, error: BaseException) -> None:
        """Keep what a handler of the program's raised, until it can be told."""
        # As text: the exception would hold the frames of the training, and their tensors.
        self._raised.setdefault(number.name, "".join(traceback.format_exception(error)).rstrip())


class _Taken:
    """A signal as one `install` took it over, and its handler.

    Others that found it may call it, or put it back, long after it was restored: it then means what it found
    itself. So does it in a child forked from the trainer, for which the signal is meant.
    """

    def __init__(self, signals: StopSignals, number: signal.Signals) -> None:
        self.number = number
        self._signals = signals
        self._before: Any = signal.getsignal(number)
        self._pid = os.getpid()
        self._is_restored = False

    def give_back(self, *, ignores: bool) -> None:
        """Mean from now on what was found, or, if it `ignores`, nothing; and put that in force."""
        if ignores:
            self._before = signal.SIG_IGN
        self._is_restored = True
        before = self.living()
        # A handler set by C code reads as None and cannot be set again.
        if self._is_in_force and before is not None:
            signal.signal(self.number, before)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        before = self.living()
        if self.is_over:
            if self._is_in_force:
                signal.signal(number, signal.SIG_DFL if before is None else before)
                os.kill(os.getpid(), number)
            elif callable(before):
                before(number, frame)
            return
        self._signals.hear(self.number)
        if isinstance(before, _Taken):
            before(number, frame)  # one of us raises only where someone at the terminal insists
        elif callable(before) and before is not signal.default_int_handler:
            self._pass_on(before, frame)

    def living(self) -> Any:
        """Return what was found, or what that found, where it is one of us and over."""
        before = self._before
        return before.living() if isinstance(before, _Taken) and before.is_over else before

    @property
    def is_over(self) -> bool:
        """Tell whether a signal means what it meant before."""
        return self._is_restored or os.getpid() != self._pid

    @property
    def _is_in_force(self) -> bool:
        return signal.getsignal(self.number) is self

    def _pass_on(self, before: Any, frame: FrameType | None) -> None:
        try:
            before(self.number, frame)
        except (SystemExit, KeyboardInterrupt):
            # It wanted to leave at once. We leave too, after the save that it would have torn.
            return
        except BaseException as error:  # noqa: BLE001 - whatever it is, it would tear the step that it met
            self._signals.note(self.number, error)


def _at_terminal() -> bool:
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except ValueError:
        return False
