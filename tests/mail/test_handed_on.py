# SPDX-License-Identifier: Apache-2.0
"""Genuine mails of DigitalOcean that hand on what others wrote: none may stop or cancel."""

from __future__ import annotations

import pytest

from tests.mail.judgements import follows, only, written
from tests.mail.tables import pairs

RECLAIM = "Your Spot Droplet spot-trainer-01 will be reclaimed at 2026-11-29 12:20 UTC."
BY_NUMBER = "Your Spot Droplet 512345678 will be reclaimed immediately."
CANCEL = "The reclaim of your Spot Droplet spot-trainer-01 has been cancelled."
FRAMES = pairs("frames.txt")
SUBJECTS = ("{}", "{} Spot Droplet", "Spot Droplet reclaim notice", "Your Spot Droplet spot-trainer-01")


@pytest.mark.hostile(42, 48)
@pytest.mark.parametrize("words", [RECLAIM, BY_NUMBER, CANCEL], ids=["name", "number", "cancel"])
@pytest.mark.parametrize(("subject", "text"), FRAMES)
def test_words_that_a_mail_hands_on_neither_stop_nor_cancel(subject: str, text: str, words: str) -> None:
    """Reports, tickets, forms, names, commits: under the Subject of such a mail, and of a notice."""
    for form in SUBJECTS:
        found = only(written(text.format(words), subject=form.format(subject)))
        assert follows(found) in ("flush", "ignored", "weak cancel")


@pytest.mark.hostile(42, 48)
@pytest.mark.parametrize("words", [RECLAIM, BY_NUMBER, CANCEL], ids=["name", "number", "cancel"])
@pytest.mark.parametrize(("subject", "text"), pairs("unknown_frames.txt"))
def test_under_a_subject_that_only_names_spot_nothing_unknown_may_stand_before(
    subject: str, text: str, words: str
) -> None:
    """Nobody can list all the kinds of mails in which a stranger speaks."""
    assert follows(only(written(text.format(words), subject=subject))) in ("flush", "ignored", "weak cancel")
