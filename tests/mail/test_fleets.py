# SPDX-License-Identifier: Apache-2.0
"""Mails about many Droplets: each by what is said of it, at its own time, at a bounded cost."""

from __future__ import annotations

import time

import pytest

from spotwatch.mail.model import Droplet
from spotwatch.mail.normalising import MAX_CHARACTERS
from spotwatch.mail.patterns import default_patterns
from spotwatch.mail.understanding import understand
from tests.mail.judgements import SIGNED, follows, judged, written
from tests.mail.samples import DELAY, OURS, SENT_AT

OTHER = Droplet(droplet_id=7000001, names=frozenset({"spot-other-02"}))
FLEET = tuple(Droplet(droplet_id=7000000 + n, names=frozenset({f"spot-batch-{n:03}"})) for n in range(600))


def what_follows(text: str) -> list[tuple[str, str]]:
    """Return what follows for ours and for the other, and when."""
    found = judged(written(text, subject="Spot Droplet reclaim notice"), SIGNED, OURS, OTHER)
    return [(follows(one), f"{one.at:%H:%M}" if one.at else "") for one in found]


@pytest.mark.hostile(50)
def test_each_droplet_goes_at_the_time_of_its_own_row() -> None:
    """Not at the earliest of the table."""
    rows = "spot-trainer-01 | 2026-11-29 13:50 UTC\nspot-other-02 | 2026-11-29 12:40 UTC"
    assert what_follows(f"These Spot Droplets will be reclaimed:\n\n{rows}") == [
        ("stop", "13:50"),
        ("stop", "12:40"),
    ]


@pytest.mark.hostile(50)
def test_one_that_is_only_named_beside_another_is_flushed() -> None:
    """Which of them goes is said."""
    text = (
        "Spot Droplet spot-other-02 will be reclaimed at 13:50 UTC. Droplet spot-trainer-01 is not affected."
    )
    assert what_follows(text) == [("flush", "13:50"), ("stop", "13:50")]


@pytest.mark.hostile(50)
@pytest.mark.parametrize(
    "unit",
    [
        "spot-batch-{} 2026-11-29 13:50 UTC\n",
        "Your Spot Droplet spot-batch-{} will be reclaimed at 12:40 UTC. ",
        "a: ",
        "x:\n\n",
        "12:40 ",
        "reclaimed at 12:40 ",
        "we will reclaim spot-1-2-3 ",
        "'a b' ",
        "session of session of ",
    ],
)
def test_the_worst_text_about_a_fleet_takes_bounded_time(unit: str) -> None:
    """Seconds even on a slow machine."""
    pieces = (unit.replace("{}", f"{n % 600:03}") for n in range(MAX_CHARACTERS // len(unit)))
    mail = written("These Spot Droplets will be reclaimed:\n\n" + "".join(pieces), subject="Spot reclaim")
    began = time.process_time()
    understand(mail, droplets=(*FLEET, OURS), patterns=default_patterns(), received_at=SENT_AT + DELAY)
    assert time.process_time() - began < 8
