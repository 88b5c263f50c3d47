# SPDX-License-Identifier: Apache-2.0
"""Text as a person sees it, whatever characters it is made of."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwatch.mail.normalising import MAX_CHARACTERS, normalise


@pytest.mark.hostile(56)
@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("spot\u200b-\u2060tr\u00adainer\ufeff-01", "spot-trainer-01"),
        ("\u202eabc\u2066d\u2069", "abcd"),
        ("a\u034fb\u3164c\ufe0fd\U000e0101", "abcd"),
        ("a\x00b\x1b[31m\x7f", "ab[31m"),
        ("\uff53\uff50\uff4f\uff54\u20111", "spot\u20101"),
        ("  a \t\u00a0\u2003b  \r\n\r\n\r\n\r\n c\u2028d\x0be ", "a b\n\nc\nd\ne"),
        ("\ud800x\udfff", "x"),
    ],
)
def test_what_cannot_be_seen_goes(text: str, seen: str) -> None:
    """Zero width, bidi, control, fillers and half pairs; wide letters become plain ones."""
    assert normalise(text) == seen


@given(st.text(st.characters(exclude_categories=())))
def test_normal_text_is_bounded_and_harmless(text: str) -> None:
    """For any text: no character that steers a terminal, one blank, at most one empty line."""
    seen = normalise(text)
    assert len(seen) <= MAX_CHARACTERS
    assert all(c == "\n" or unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Zl", "Zp"} for c in seen)
    assert "  " not in seen
    assert " \n" not in seen
    assert "\n\n\n" not in seen
    assert seen == seen.strip()
    seen.encode()


def test_combining_marks_cost_no_more_than_other_text() -> None:
    """64,000 marks out of order take the standard library seconds; 30 at a time are kept."""
    begin = time.process_time()
    seen = normalise("a" + "\u0301\u0316" * (MAX_CHARACTERS // 2) + "b")
    assert time.process_time() - begin < 1
    assert len(seen) <= 31
    assert normalise("e\u0301" * 9) == "\u00e9" * 9
