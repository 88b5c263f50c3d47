# SPDX-License-Identifier: Apache-2.0
"""The timeline on a terminal, in a pipe and nowhere."""

from __future__ import annotations

import io
import re

from spotwatch.drill import Timeline


class Terminal(io.StringIO):
    """Text that claims to be a terminal."""

    def isatty(self) -> bool:
        """Say yes."""
        return True


def test_in_a_pipe_there_are_only_whole_lines() -> None:
    """No progress and no control characters: a log stays readable."""
    out = io.StringIO()
    timeline = Timeline(out)
    timeline.begin("aws")
    timeline.progress("aws", "step 7")
    timeline.event("aws", "told to flush")
    timeline.line("a word")
    assert re.fullmatch(r"aws +\+0\.0\d s  told to flush\na word\n", out.getvalue())


def test_on_a_terminal_the_progress_is_the_last_line() -> None:
    """Events scroll above it, it is taken back for them, and it ends with its cloud."""
    out = Terminal()
    timeline = Timeline(out)
    timeline.progress("aws", "step 7")
    timeline.progress("gcp", "step 9")
    assert out.getvalue().endswith("\r\x1b[2Kaws: step 7 | gcp: step 9")
    timeline.event("gcp", "told to stop")
    assert "\r\x1b[2Kgcp " in out.getvalue()
    assert out.getvalue().endswith("told to stop\n\r\x1b[2Kaws: step 7 | gcp: step 9")
    timeline.progress("aws", "")
    timeline.progress("gcp", "")
    assert out.getvalue().endswith("\r\x1b[2K")


def test_the_same_progress_is_shown_once() -> None:
    """A hundred looks a second do not write a hundred lines."""
    out = Terminal()
    timeline = Timeline(out)
    timeline.progress("aws", "step 7")
    before = out.getvalue()
    timeline.progress("aws", "step 7")
    assert out.getvalue() == before


def test_nowhere() -> None:
    """Without a place to write nothing is written, and nothing fails."""
    timeline = Timeline(None)
    timeline.event("aws", "told to flush")
    timeline.progress("aws", "step 7")
    timeline.line("a word")
