# SPDX-License-Identifier: Apache-2.0
"""What is denied, supposed, past, an example, or said of another Droplet or thing: no stop."""

from __future__ import annotations

import pytest

from tests.mail.judgements import follows, only, written
from tests.mail.tables import rows

STATEMENTS = rows("negations.txt")


@pytest.mark.hostile(42)
@pytest.mark.parametrize("subject", ["Your DigitalOcean Droplet", "Spot Droplet reclaim notice"])
@pytest.mark.parametrize("text", STATEMENTS)
def test_what_is_no_fact_of_our_droplet_stops_nothing(text: str, subject: str) -> None:
    """It flushes at most, also under the Subject of a notice."""
    assert follows(only(written(text, subject=subject))) not in ("stop", "correction")


def test_a_reclaim_of_two_is_one_of_ours() -> None:
    """Both stand before the verb, or in its list."""
    for text in (
        "Spot Droplets spot-other-02 and spot-trainer-01 will be reclaimed at 2026-11-29 13:50 UTC.",
        "These Spot Droplets will be reclaimed at 13:50 UTC:\n\n- spot-other-02\n- spot-trainer-01",
    ):
        assert follows(only(written(text, subject="Spot reclaim"))) == "stop"
