# SPDX-License-Identifier: Apache-2.0
"""Signals only set flags, are passed on, and are given back."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from spotwatch.train.signals import STOPPING, StopSignals


@pytest.fixture(autouse=True)
def _keep_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_is_a_wish(number: signal.Signals) -> None:
    """Each of them asks to stop, any number of times, and interrupts nothing."""
    signals = StopSignals()
    signals.install()
    for _ in range(5):
        os.kill(os.getpid(), number)
    assert (signals.stop, signals.name) == (True, number.name)


def test_what_was_there_is_called_and_put_back() -> None:
    """A handler of the program's own still hears the signal, and is installed again at the end."""
    heard: list[int] = []

    def own(number: int, frame: Any) -> None:
        heard.append(number)
        raise SystemExit(1)

    signal.signal(signal.SIGTERM, own)
    signals = StopSignals()
    signals.install()
    signals.install()
    os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [signal.SIGTERM]
    signals.restore()
    assert signal.getsignal(signal.SIGTERM) is own


def test_an_ignored_interrupt_stays_ignored() -> None:
    """A job in the background does not hear the terminal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals = StopSignals()
    signals.install()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_handler_set_later_is_not_taken_away() -> None:
    """What the program installed after us is not replaced at the end."""
    signals = StopSignals()
    signals.install()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signals.restore()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_outside_the_main_thread_it_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Python lets only the main thread take signals; elsewhere a warning, no error."""
    signals = StopSignals()
    for call in (signals.install, signals.restore):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert "not in the main thread" in caplog.text
