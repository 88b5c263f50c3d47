# SPDX-License-Identifier: Apache-2.0
"""What may stand below a notice without taking its stop away, or moving its time."""

from __future__ import annotations

import pytest

from tests.mail.judgements import follows, missing, only, written
from tests.mail.tables import rows

NOTICE = "Your Spot Droplet spot-trainer-01 will be reclaimed at 2026-11-29 13:50 UTC."
SUPPLEMENTS = rows("supplements.txt")


@pytest.mark.parametrize("text", SUPPLEMENTS)
def test_what_stands_below_a_notice_does_not_weaken_it(text: str) -> None:
    """It neither says that the reclaim is off nor names another time of it."""
    found = only(written(f"Hello,\n\n{NOTICE}\n\n{text}\n\nThe team", subject="Spot Droplet reclaim notice"))
    assert (follows(found), f"{found.at:%H:%M}") == ("stop", "13:50")


@pytest.mark.parametrize(
    "text",
    [
        "The Droplet will not be shut down gracefully, so save your work.",
        "Any uptime checks on this Droplet will stop reporting.",
        "Billing stops within 5 minutes after it is reclaimed.",
        "On-demand Droplets will not be reclaimed.",
        "Please disregard any previous notice.",
    ],
)
def test_nor_does_it_in_the_same_paragraph(text: str) -> None:
    """A foot need not stand apart."""
    found = only(written(f"{NOTICE} {text}", subject="Spot Droplet reclaim notice"))
    assert (follows(found), f"{found.at:%H:%M}") == ("stop", "13:50")


def test_a_notice_that_says_that_an_earlier_one_was_wrong_corrects_it() -> None:
    """Its time replaces the other one."""
    text = f"{NOTICE}\n\nThis updates our previous notice, which contained an incorrect time."
    assert follows(only(written(text, subject="Spot Droplet reclaim notice"))) == "correction"


@pytest.mark.parametrize(
    "subject", ["Important notice about your Droplet", "Update", "Hello", "Final notice"]
)
def test_without_a_subject_that_speaks_of_it_a_notice_flushes(subject: str) -> None:
    """Whatever stands in a mail about something else."""
    found = only(written(NOTICE, subject=subject))
    assert follows(found) == "flush"
    assert "its Subject speaks of no reclaim" in missing(found)


@pytest.mark.parametrize(
    "subject",
    [
        "Spot Droplet reclaim notice",
        "Your Spot Droplet will be reclaimed",
        "Action required: Spot Droplet interruption",
        "[DigitalOcean] Your Droplet will be terminated in two hours",
        "Spot capacity notice",
        "Your reclaim",
        "Termination of your Droplet",
    ],
)
def test_a_subject_that_speaks_of_it_is_enough(subject: str) -> None:
    """Of the reclaim, of Spot, or of the end of the Droplet."""
    assert follows(only(written(NOTICE, subject=subject))) == "stop"
