# SPDX-License-Identifier: Apache-2.0
"""Times that are written otherwise than with a colon and UTC, and those that have no sure zone."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from spotwatch.mail.times import when
from tests.mail.test_times import read, stated


@pytest.mark.hostile(53)
@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("reclaimed at 13:30", "13:30"),
        ("reclaimed at 2026-11-29 12:40", "12:40"),
        ("reclaimed at 8:20 AM", "12:20"),
        ("reclaimed at 8:20 AM EST", "13:20"),
        ("reclaimed at 8:20 AM ET", "12:20"),
        ("reclaimed at 05:10 PST", "13:10"),
        ("reclaimed at 14:10 CET", "13:10"),
        ("reclaimed at 18:40 IST", "13:10"),
        ("the times below are local; reclaimed at 13:30", "13:30"),
    ],
)
def test_a_time_without_a_sure_zone_shortens_the_fallback_to_the_earliest_that_it_may_mean(
    text: str, at: str
) -> None:
    """It is not stated, so that the mail is kept for people to look at."""
    found = read(text)
    assert (f"{found.at:%H:%M}", found.is_stated) == (at, False)
    assert "no sure zone" in found.why


@pytest.mark.parametrize(
    "form",
    [
        *("in approx. 40 minutes", "in ~40 minutes", "in forty minutes", "in 0h 40m", "in 0h40m", "in 40m"),
        *("40 minutes after this notice", "40 minutes from now", "in 00:40:00", "in 0:40 hours"),
        *("at 12:40, UTC", "at 12:40h UTC", "at 12:40 hrs UTC", "at 12:40 [UTC]", "at 12:40 - UTC"),
        *("at 12.40 pm UTC", "at 12h40 UTC", "at 12.40 UTC", "at 1240 UTC", "at 1240Z", "at 12:40 Zulu"),
        *("on 20261129T124000Z", "at 20261129T1240+00:00", "at 12:40 Universal Time"),
        *("at 13:40 CET (UTC+1)", "at 18:10 IST (+05:30)", "at 11:40 UTC\u22121"),
        *(
            ". UTC time: 12:40",
            ". Time (UTC): 12:40",
            ". Timezone: UTC, start: 12:40",
            ". Time remaining: 40 minutes",
        ),
        *(". You have 40 minutes left", ". This is your 40-minute notice"),
    ],
)
def test_the_same_time_in_many_forms(form: str) -> None:
    """Each as some mail writes it."""
    assert stated(f"your Droplet will be reclaimed {form}") == "29 12:40"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("reclaimed in a quarter of an hour", "29 12:15"),
        ("will be reclaimed within minutes", "29 12:00"),
        ("will be reclaimed momentarily", "29 12:00"),
        ("reclaimed at 13:50 UTC. Billing stops within 5 minutes after it is reclaimed", "29 13:50"),
        ("reclaimed at 13:50 UTC. Destroyed about 2 minutes after ACPI shutdown", "29 13:50"),
    ],
)
def test_a_span_that_counts_from_the_deed_is_none(text: str, at: str) -> None:
    """Others count from the mail."""
    assert stated(text) == at


def test_a_window_over_midnight_begins_on_the_day_before() -> None:
    """The day that stands behind it is its end's."""
    signed_at = datetime(2026, 12, 11, 23, 30, tzinfo=UTC)
    text = "reclaimed between 23:45 and 00:15 UTC on December 12"
    found = when(text, signed_at=signed_at, received_at=signed_at)
    assert (found.at, found.is_stated) == (datetime(2026, 12, 11, 23, 45, tzinfo=UTC), True)
