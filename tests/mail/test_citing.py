# SPDX-License-Identifier: Apache-2.0
"""Quotation marks of all kinds: what stands in them is cited, over paragraphs and without an end too."""

from __future__ import annotations

import time

import pytest

from spotwatch.mail.citing import split_citations
from spotwatch.mail.normalising import MAX_CHARACTERS, normalise
from tests.mail.judgements import follows, only, written

RECLAIM = "Your Spot Droplet spot-trainer-01 will be reclaimed at 2026-11-29 13:50 UTC."
MARKS = [
    ('"', '"'),
    ("'", "'"),
    ("\u201c", "\u201d"),
    ("\u201e", "\u201c"),
    ("\xab", "\xbb"),
    ("\xbb", "\xab"),
    ("\u2039", "\u203a"),
    ("\u201a", "\u2018"),
    ("\u300c", "\u300d"),
    ("\uff02", "\uff02"),
    ("`", "`"),
    ("``", "''"),
    ("''", "''"),
    ("\u201d", "\u201d"),
    ("\u2018", "\u2019"),
    ("\u275d", "\u275e"),
    ("\u301d", "\u301e"),
]


@pytest.mark.hostile(45)
@pytest.mark.parametrize(("opening", "closing"), MARKS)
def test_what_stands_in_quotation_marks_stops_nothing(opening: str, closing: str) -> None:
    """Of one sentence, of paragraphs, however long, and where nobody closes them."""
    long = "Well said words. " * 40
    for said in (RECLAIM, f"{long}{RECLAIM}"):
        text = f"This is of interest {opening}{said}{closing} to us."
        assert follows(only(written(text, subject="Spot reclaim"))) == "flush"
    assert RECLAIM not in split_citations(normalise(f"{opening}Hello. {RECLAIM}")).own


@pytest.mark.hostile(45)
@pytest.mark.parametrize(
    ("opening", "closing"), [pair for pair in MARKS if pair[0] not in "'`\u2018\u201a\u2019"]
)
def test_a_quotation_may_run_over_paragraphs(opening: str, closing: str) -> None:
    """All of it is cited, and what stands behind it is own."""
    text = f"See {opening}Hello.\n\n{RECLAIM}\n\nBye.{closing} So it is."
    cited = split_citations(normalise(text))
    assert (cited.own, RECLAIM in cited.cited) == ('See "" So it is.', True)


@pytest.mark.parametrize(
    "unit", ['"a ', "\u201ca ", "'a ", '"', "``", "\u201c\n\n", "\u00ab ", "'a b' ", "\u201e a\u201c "]
)
def test_a_text_of_nothing_but_marks_is_cheap(unit: str) -> None:
    """A second on a slow machine."""
    text = (unit * MAX_CHARACTERS)[:MAX_CHARACTERS]
    began = time.process_time()
    split_citations(text)
    assert time.process_time() - began < 5
