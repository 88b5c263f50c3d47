# SPDX-License-Identifier: Apache-2.0
"""Threads for requests that may hang: waited for by who began them, not by the end of the program."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from spotwatch.train.stores.crew import Crew


def test_so_many_things_are_done_at_once_and_waited_for() -> None:
    """Their results and errors come back; at the end of the `with` none is at work."""
    both = threading.Barrier(2)

    def meet(number: int) -> int:
        both.wait(10)
        return number

    with Crew(2, "spotwatch-test") as crew:
        futures = [crew.submit(meet, number) for number in range(4)]
        failing = crew.submit(int, "x")
    assert [future.result(0) for future in futures] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="invalid literal"):
        failing.result(0)
    assert "spotwatch-test" not in {thread.name for thread in threading.enumerate()}


_PROGRAM = """
import threading
from spotwatch.train.stores.crew import Crew

def save():
    with Crew(1, "hangs") as crew:
        crew.submit(threading.Event().wait)

threading.Thread(target=save, daemon=True).start()
raise SystemExit(76)
"""


def test_a_request_that_hangs_does_not_hold_up_the_end_of_the_program() -> None:
    """The exit status is the one that was wanted."""
    assert subprocess.run([sys.executable, "-c", _PROGRAM], check=False, timeout=15).returncode == 76
