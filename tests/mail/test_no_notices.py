# SPDX-License-Identifier: Apache-2.0
"""Genuine mails of DigitalOcean that name our Spot Droplet and speak of its end, and are no notice of it."""

from __future__ import annotations

import pytest

from tests.mail.judgements import follows, only, written

READY = "Your Spot Droplet spot-trainer-01 is ready."
SHORT = "Your Spot Droplet spot-trainer-01 runs."


@pytest.mark.hostile(42)
@pytest.mark.parametrize("hello", [READY, SHORT])
@pytest.mark.parametrize(
    "text",
    [
        "It will be reclaimed as soon as we need the capacity, with two hours' notice by e-mail.",
        "Spot Droplets will be reclaimed at any time, with at least two hours notice.",
        "Spot Droplets have to be reclaimed from time to time.",
        "Your Droplet will be destroyed two hours after we send a notice.",
        "After the notice, the Droplet will be destroyed.",
        "We will terminate Spot Droplets with two hours notice.",
        "Your Droplet will be reclaimed in the event that capacity is needed.",
        "In case of high demand it will be reclaimed.",
        "It will eventually be reclaimed; save often.",
        "We are going to terminate it once on-demand customers need the capacity.",
        "It is going to be reclaimed sometime this week.",
        "Should we need the capacity, your Droplet will be reclaimed.",
    ],
)
def test_how_spot_works_is_no_notice(hello: str, text: str) -> None:
    """A mail of a new Droplet, or a page of advice."""
    assert follows(only(written(f"{hello}\n\n{text}", subject="Welcome"))) in ("flush", "ignored")


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        ("Billing", "Your Spot Droplet spot-trainer-01 will be destroyed in 7 days."),
        (
            "Trial",
            "It ends on December 7, 2026 at 12:00 UTC. Spot Droplet spot-trainer-01 will be terminated.",
        ),
        ("Account", "All Spot Droplets on your account (spot-trainer-01) will be powered off in 3 days."),
        ("End", "It ends on January 31, 2027. Your Spot Droplet spot-trainer-01 will be reclaimed then."),
        ("Starting January 1, 2027", "Your Spot Droplet spot-trainer-01 will be reclaimed differently."),
    ],
)
def test_what_is_days_ahead_only_flushes_and_is_kept(subject: str, text: str) -> None:
    """The fall-back of two hours is for notices that state no time."""
    found = only(written(text, subject=subject))
    assert (follows(found), found.is_kept) == ("flush", True)


@pytest.mark.parametrize(
    "text",
    [
        "Your Spot Droplet spot-trainer-01 will be reclaimed at 13:50 UTC with two hours' notice.",
        "With two hours' notice, your Spot Droplet spot-trainer-01 will be reclaimed in two hours.",
        "As capacity can be needed at any time, Spot Droplet spot-trainer-01 will be reclaimed at 13:50 UTC.",
        "Your Spot Droplet spot-trainer-01 will be reclaimed at once.",
        f"{READY} It will be reclaimed at 2026-11-29 13:50 UTC.".replace("is ready", "was created"),
    ],
)
def test_a_notice_that_also_tells_how_spot_works_stops(text: str) -> None:
    """A time of day makes it a fact."""
    assert follows(only(written(text))) == "stop"
