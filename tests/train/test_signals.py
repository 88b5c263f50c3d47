# SPDX-License-Identifier: Apache-2.0
"""Signals only set flags, are passed on, and are given back."""

from __future__ import annotations

import itertools
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


@pytest.mark.parametrize("number", STOPPING)
def test_a_handler_that_raises_tears_nothing(
    caplog: pytest.LogCaptureFixture, number: signal.Signals
) -> None:
    """The program's own handler is called for each signal; what it raises is told at the end, once."""
    heard: list[int] = []

    def own(number: int, frame: Any) -> None:
        heard.append(number)
        raise ZeroDivisionError("mine")

    signal.signal(number, own)
    signals = StopSignals()
    signals.install()
    for _ in range(2):
        os.kill(os.getpid(), number)
    assert (heard, signals.stop, signals.name) == ([number] * 2, True, number.name)
    signals.restore()
    signals.restore()
    assert caplog.text.count("ZeroDivisionError: mine") == 1
    assert f"handler of {number.name} raised" in caplog.text


def test_what_python_does_about_an_interrupt_is_not_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    """Where the program installed nothing, an interrupt is a wish and nothing else."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signals = StopSignals()
    signals.install()
    os.kill(os.getpid(), signal.SIGINT)
    signals.restore()
    assert signals.stop
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not caplog.records


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_several_end_in_any_order(order: tuple[int, ...]) -> None:
    """Those still there hear, those that are over do not, and at last what was there first is in force."""
    heard: list[int] = []

    def own(number: int, frame: Any) -> None:
        heard.append(number)

    for number in STOPPING:
        signal.signal(number, own)
    several = [StopSignals() for _ in order]
    for signals in several:
        signals.install()
    for count, over in enumerate(order, 1):
        several[over].restore()
        for signals in several:
            signals.stop = False
        for number in STOPPING:
            os.kill(os.getpid(), number)
        assert [signals.stop for signals in several] == [one not in order[:count] for one in range(3)]
    assert heard == list(STOPPING) * 3
    assert [signal.getsignal(number) for number in STOPPING] == [own] * 3


def test_one_that_begins_again_under_another_goes_round_in_no_circle() -> None:
    """Each installation is one of its own, also of the same signals."""
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    first, second = StopSignals(), StopSignals()
    for call in (first.install, second.install, first.restore, first.install):
        call()
    os.kill(os.getpid(), signal.SIGTERM)
    assert (heard, first.stop, second.stop) == ([signal.SIGTERM], True, True)


def test_put_back_by_another_it_means_what_it_found() -> None:
    """A library that took our handler for the program's gives it back after we have gone."""
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    signals = StopSignals()
    signals.install()
    ours = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signals.restore()
    signal.signal(signal.SIGTERM, ours)
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
    assert (heard, signals.stop) == ([signal.SIGTERM] * 2, False)
    assert signal.getsignal(signal.SIGTERM) is not ours


def test_told_to_leave_it_stays_ignored_in_any_order() -> None:
    """A stop that is told again on the way out changes no exit status, also under another."""
    first, second = StopSignals(), StopSignals()
    first.install()
    second.install()
    first.restore(leaving=True)
    second.restore()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
