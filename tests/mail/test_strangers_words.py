# SPDX-License-Identifier: Apache-2.0
"""What strangers write into genuine mails of DigitalOcean: names of teams, comments, answers to tickets."""

from __future__ import annotations

import pytest

from spotwatch.config import Mail as Rules
from spotwatch.mail.citing import split_citations
from tests.mail.judgements import SINGLE, TEXT, follows, missing, only, written

RECLAIM = "Your Spot Droplet 512345678 will be reclaimed in 5 minutes"
CANCEL = "The reclaim of Spot Droplet 512345678 has been cancelled"
FRAMES = [
    ("Anna invited you to join a team", 'Anna has invited you to join the team "{}" on DigitalOcean.'),
    ("Anna invited you to join a team", "Anna has invited you to join the team {}. on DigitalOcean."),
    ("You have been invited to join {}", "Accept the invitation in the control panel."),
    ("[DigitalOcean] Reply on: help", "Your ticket #1234567 has a new reply.\n\nanna wrote:\n{}."),
    ("New comment on your question", 'bob commented on your question "How to run torch":\n\n{}.'),
    ("Image transfer request", 'bob wants to transfer the image "{}" to you.'),
    ("Image transfer request", 'bob wants to transfer the image "x." {}. "x" to you.'),
    ("Project shared", "You were added to the project {}."),
    ("Notice", "This is about a team called x. {}."),
    ("Notice", "The snapshot \u201c{}\u201d is there."),
    ("Notice", "The snapshot is titled: {}"),
    ("Uptime check", "Uptime check {} is down."),
    ("Alert", "The alert named {} has fired."),
    ("Notice", "Anna shared a link: {}."),
    ("Spot monitoring", "The name of the check is '{}'."),
]


@pytest.mark.hostile(42, 48)
@pytest.mark.parametrize("rules", [Rules(account_addresses=("ops@example.org",)), SINGLE], ids=["", "single"])
@pytest.mark.parametrize("words", [RECLAIM, CANCEL])
@pytest.mark.parametrize(("subject", "text"), FRAMES)
def test_words_of_strangers_neither_stop_nor_cancel(
    subject: str, text: str, words: str, rules: Rules
) -> None:
    """DigitalOcean signs the whole mail, the stranger's words in it too."""
    found = only(written(text.format(words), subject=subject.format(words)), rules=rules)
    assert follows(found) in ("flush", "ignored")
    assert found.is_kept or follows(found) == "ignored"


@pytest.mark.hostile(43)
def test_an_address_alone_is_weak() -> None:
    """Anybody can scan for one; beside the name it does no harm."""
    found = only(written("Your Spot Droplet 203.0.113.7 will be reclaimed at 2026-11-29 13:50 UTC."))
    assert follows(found) == "flush"
    assert "anybody can find out an address" in missing(found)[0]
    assert follows(only(written(f"{TEXT} Address: 203.0.113.7"))) == "stop"


def test_the_only_droplet_of_an_account_is_meant_however_it_is_named() -> None:
    """With `mail.single_droplet_account` a mail is strong that names nobody: this is no less."""
    text = "Your Spot Droplet 203.0.113.7 will be reclaimed at 2026-11-29 13:50 UTC."
    assert follows(only(written(text), rules=SINGLE)) == "stop"


@pytest.mark.hostile(48)
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The reclaim of spot-trainer-01 has been cancelled.", "cancel"),
        ("The reclaim of spot-trainer-01 has been postponed to 2026-11-29 13:55 UTC.", "correction"),
    ],
)
def test_what_takes_back_must_stand_in_the_subject_too(text: str, wanted: str) -> None:
    """A subject about something else is a mail about something else."""
    weak = only(written(text, subject="Hello"))
    assert follows(weak) in ("weak cancel", "flush")
    assert "its Subject speaks of no reclaim" in missing(weak)
    for subject in ("Spot Droplet", "Re: your reclaim", "Your reclaim", "Update: Spot Droplet"):
        assert follows(only(written(text, subject=subject))) == wanted


@pytest.mark.parametrize(
    "text",
    [
        'Your Spot Droplet "spot-trainer-01" will be reclaimed at 2026-11-29 13:50 UTC.',
        "Your Spot Droplet called spot-trainer-01 will be reclaimed at 2026-11-29 13:50 UTC.",
        "Your Spot Droplet named 'spot-trainer-01' will be reclaimed at 2026-11-29 13:50 UTC.",
        "Your team's Spot Droplet spot-trainer-01 will be reclaimed at 2026-11-29 13:50 UTC. It's time.",
        f"{TEXT} If you have questions, open a support ticket.",
        f"{TEXT} You receive this because you are a member of the team Research.",
        f"{TEXT} See our community tutorials and webinars, or unsubscribe. We value your comments.",
        f"{TEXT} On-demand GPU Droplets are now available. Snapshots are on your next invoice.",
    ],
)
def test_a_notice_that_looks_a_little_like_them_still_stops(text: str) -> None:
    """A Droplet has a name too, and every mail has a foot."""
    assert follows(only(written(text))) == "stop"


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ('say "a b" now', 'say "" now'),
        ('the "name" stays', 'the "name" stays'),
        ("it's what we're \u2018told to\u2019", "it's what we're \"\""),
        ("a \u201cb c\u201d \u00abd\u00bb", 'a "" ""'),
        ('a " alone, and no other', 'a " alone, and no other'),
        ("a team called x. y\n\nz", "a team called \n\nz"),
        ("called off", "called off"),
    ],
)
def test_only_what_is_cited_is_cut_out(text: str, own: str) -> None:
    """Apostrophes become plain, and marks that nobody closes mean nothing."""
    assert split_citations(text).own == own
