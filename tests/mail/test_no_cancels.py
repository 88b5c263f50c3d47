# SPDX-License-Identifier: Apache-2.0
"""What sounds like the end of a reclaim and is none: the stop stays."""

from __future__ import annotations

import pytest

from tests.mail.judgements import follows, missing, only, written
from tests.mail.tables import pairs

STATEMENTS = pairs("no_cancels.txt")
CANCEL = "The reclaim of your Spot Droplet spot-trainer-01 has been cancelled."


@pytest.mark.hostile(48)
@pytest.mark.parametrize(("subject", "text"), STATEMENTS)
def test_what_is_not_said_of_the_reclaim_itself_takes_nothing_back(subject: str, text: str) -> None:
    """A delay, an offer, a protection, a cancellation, or a reclaim that is on again."""
    found = only(written(text, subject=subject))
    assert follows(found) in ("flush", "ignored", "not_mine", "weak cancel", "stop")


@pytest.mark.hostile(48)
@pytest.mark.parametrize(
    "subject",
    [
        "Re: [DigitalOcean] Ticket #12345678: Spot Droplet reclaim",
        "[Request received] Spot Droplet reclaim",
        "Spot Droplet reclaim [#12345678]",
        "Case 12345678: Spot Droplet reclaim",
    ],
)
def test_a_mail_with_a_number_of_a_request_cancels_nothing(subject: str) -> None:
    """Anybody can open one, and the answer quotes what he wrote."""
    assert follows(only(written(CANCEL, subject=subject))) == "flush"


def test_a_cancel_in_doubt_says_why() -> None:
    """For `spotwatch mail test`."""
    text = f"{CANCEL} The reclaim of spot-other-02 was cancelled by mistake."
    found = only(written(text, subject="Spot reclaim"))
    assert follows(found) == "flush"
    assert any("with a condition or an exception" in line for line in found.lines)
    assert "what it says is not clear" in missing(found)
