# SPDX-License-Identifier: Apache-2.0
"""Times as mails write them, and what is no time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from spotwatch.mail.moments import moment
from spotwatch.mail.times import MAX_TIMES, When, when

SIGNED = datetime(2026, 11, 29, 12, tzinfo=UTC)
RECEIVED = SIGNED + timedelta(seconds=20)


def read(text: str, *, is_correction: bool = False) -> When:
    """Return when a Droplet goes by a mail that came at once."""
    return when(text, signed_at=SIGNED, received_at=RECEIVED, is_correction=is_correction)


def stated(text: str, *, is_correction: bool = False) -> str:
    """Return `DD HH:MM` that the text states; empty: it states none."""
    found = read(text, is_correction=is_correction)
    return f"{found.at:%d %H:%M}" if found.is_stated else ""


@pytest.mark.hostile(53)
@pytest.mark.parametrize(
    "text",
    [
        "Start: 2026-11-29 13:30 UTC",
        "Start: 2026-11-29 13:30:00 (UTC)",
        "Maintenance start: 2026-11-29 13:30 UTC",
        "will be reclaimed at 2026-11-29T13:30Z",
        "will be reclaimed at 2026-11-29T13:30:00.000Z.",
        "will be reclaimed at 2026-11-29T13:30:00+00:00",
        "will be reclaimed at 2026-11-29 05:30-08:00",
        "will be reclaimed at 2026-11-29 15:30 UTC+2",
        "will be reclaimed at 2026-11-29 14:30 (GMT+01:00)",
        "at 2026/11/29 13:30 GMT",
        "on 2026-11-29 at 1:30 PM UTC",
        "at 1:30 p.m. UTC on November 29, 2026",
        "at 13:30 UTC on November 29th, 2026",
        "at 13:30 UTC on Sunday, 29 November 2026",
        "on the 29th of November 2026, 13:30 UTC",
        "on Nov 29, 13:30 UTC",
        "on Sun, 29 Nov 2026 13:30:00 +0000",
        "on Sun, 29 Nov 2026 14:30:00 +0100",
        "on Sun, 29 Nov 2026 13:30:00 -0000",
        "today at 13:30 UTC",
        "13:30 UTC today",
        "November 29, 2026 between 13:30 and 18:30 UTC",
        "between 13:30 and 18:30 UTC on November 29, 2026",
        "in between Nov 29, 2026 13:30 UTC and Nov 29, 2026 18:00 UTC",
        "between 2026-11-29 13:30 and 2026-11-29 18:30 UTC",
        "on 2026-11-29 13:30-18:30 UTC",
        "on 2026-11-29 13:30 \u2013 18:30 UTC",
        "between 1:30 and 3:00 PM UTC on November 29, 2026",
        "between 1:30 PM and 11:00 PM UTC on November 29, 2026",
        "Reclaim time | 2026-11-29 13:30 UTC",
        "will be\nreclaimed at 2026-11-29\n13:30 UTC",
        "will be reclaimed in 90 minutes",
        "will be reclaimed within 1 hour and 30 minutes",
        "will be reclaimed in about one and a half hours",
        "will be reclaimed within an hour and a half",
        "will be reclaimed in approximately 1.5 hours",
        "ninety minutes from now it will be terminated",
        "will be reclaimed at 13:30 UTC",
        "13:30 UTC is when it will be reclaimed",
        "will be reclaimed at 13:30 (UTC)",
        "will be reclaimed at 14:30 UTC+1",
        "will be reclaimed at 1:30 p.m. UTC",
        "will be reclaimed between 13:30 and 13:45 UTC",
        "will be reclaimed at 13:30 Coordinated Universal Time",
        "at 2026-11-29 13:30 Coordinated Universal Time",
        "will be reclaimed on Sunday at 13:30 UTC",
        "will be reclaimed at 13:30 UTC on Sunday",
        "will be reclaimed on November 29, 2026 at 8:30 AM EST (13:30 UTC)",
        "at 29.11.2026 13:30 UTC",
        "at 2026.11.29 13:30 UTC",
        "at 11/29/2026 1:30 PM UTC",
        "at 29/11/2026 13:30 UTC",
        "at 29-Nov-2026 13:30 UTC",
        "at Nov-29-2026, 13:30 UTC",
        "Start (UTC): 2026-11-29 13:30",
        "Start time (UTC): 2026-11-29 13:30:00",
        "Start time UTC: 2026-11-29 13:30",
        "Start time (UTC): 13:30",
        "Date: 2026-11-29\nTime: 13:30 UTC",
        "Date: 2026-11-29\nTime (UTC): 13:30",
        "Date: November 29, 2026\nStart time: 13:30 - 14:30 UTC",
        "Reclaim at | 2026-11-29 | 13:30 | UTC",
        "All times are in UTC.\n\nReclaim time: 2026-11-29 13:30",
        "the reclaim starts when the notice period ends at 2026-11-29 13:30 UTC",
        "will be reclaimed within ninety (90) minutes",
        "will be reclaimed in 90 to 120 minutes",
        "will be reclaimed in 90-120 minutes",
        "will be reclaimed in 90m",
        "will be reclaimed in 5400 seconds",
    ],
)
def test_an_explicit_time_is_read(text: str) -> None:
    """Half past one, in every form that has a date and a zone, or counts from the mail."""
    assert read(text).at == datetime(2026, 11, 29, 13, 30, tzinfo=UTC)
    assert read(text).is_stated


@pytest.mark.hostile(53)
@pytest.mark.parametrize(
    "text",
    [
        "at 2026-11-29 24:00 UTC",
        "at 2026-02-30 13:30 UTC",
        "at February 30, 2026 13:30 UTC",
        "at Feb 29, 13:30 UTC",
        "at 2026-11-29 13:30:60 UTC",
        "at 2026-11-29 13:60 UTC",
        "at 2026-13-29 13:30 UTC",
        "at 9999-12-31 23:59 -14:00",
        "at 0001-01-01 00:00 +14:00",
        "at 0000-00-00 00:00 UTC",
        "at 1970-01-01 00:00 UTC",
        "at 11/12/2026 13:30 UTC",
        "at 31.31.2026 13:30 UTC",
        "at 31/31/2026 13:30 UTC",
        "reclaimed on Thursday at 13:30 UTC",
        "reclaimed at 15:30 UTC",
        "reclaimed at 11:30 UTC",
        "reclaimed at 13:30 EST",
        "reclaimed at 14:30",
        "the times below are local; lunch is at 13:30",
        "reclaimed at 13:30 UTC+05:30",
        "All times are in UTC. Reclaimed on 2026-11-29 at 2 PM EST",
        "reclaim: support hours end at 13:30 UTC",
        "reclaim notice sent at 12:01 UTC",
        "reclaim, current time: 12:01 UTC",
        "save your work immediately, it is reclaimed",
        "all data will be destroyed immediately",
        "billing for reclaimed Droplets stops immediately",
        "on 2026-11-29 at 2 PM EST",
        "on 2026-11-29 14:00 IST",
        "on 2026-11-29 14:00 UTCX",
        "on 2026-11-29 14:00",
        "on 2026-11-29",
        "at 13:30 UTC",
        "on 2026-11-29 13:30 PM UTC",
        "on 2026-11-29 0:30 PM UTC",
        "on 2026-11-29 13:30 UTC+99:00",
        "on 2026-11-29 13:30 +23:00",
        "on 2026-11-29 09:00-11:00 UTC",
        "10.1.2.3 start 13:30",
        "ticket 2026112913300 UTC",
        "the reclaim was announced two hours ago",
        "at least two hours notice of a reclaim",
        "lunch in 90 minutes",
        "a reclaim in 0 minutes",
        "a reclaim in 9999 hours",
        "at \u0662\u0660\u0662\u0666-\u0661\u0661-\u0662\u0669 \u0661\u0663:\u0663\u0660 UTC",
    ],
)
def test_what_is_no_plausible_time_leads_to_the_fallback(text: str) -> None:
    """Two hours after the Date, less a quarter, and never an exception."""
    found = read(text)
    assert not found.is_stated
    assert found.at == SIGNED + timedelta(minutes=105)


@pytest.mark.hostile(54)
@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("Start: 2026-11-29 13:30 UTC End: 2026-11-29 13:10 UTC", "29 13:30"),
        ("End: 2026-11-29 13:10 UTC", ""),
        ("until 13:10 UTC on November 29, 2026", ""),
        ("a snapshot can be restored until 2026-11-29 13:10 UTC", ""),
        ("Notice sent: 2026-11-29 12:00 UTC. Reclaim: 2026-11-29 13:30 UTC", "29 13:30"),
        ("Notice sent: 2026-11-29 12:01 UTC", ""),
        ("created at 2026-11-29 12:30 UTC, reclaimed at 2026-11-29 13:30 UTC", "29 13:30"),
        ("started 2026-11-28 13:00 UTC, reclaim at 2026-11-29 13:30 UTC", "29 13:30"),
        ("reclaim at 2026-11-29 13:50 UTC, of the second at 2026-11-29 13:30 UTC", "29 13:30"),
        ("reclaim at 2026-11-29 13:30 UTC, webinar at 2026-12-03 13:00 UTC", "29 13:30"),
        ("reclaim at 2026-11-29 11:50 UTC", "29 11:50"),
        ("reclaim at 2026-11-29 11:50 UTC or at 2026-11-29 13:30 UTC", "29 13:30"),
        ("reclaim at 2026-11-29 11:44 UTC", ""),
        ("reclaim at 2026-12-01 12:01 UTC", ""),
        ("within two hours it will be reclaimed, at 2026-11-29 13:30 UTC", "29 13:30"),
    ],
)
def test_of_several_times_the_earliest_plausible_start_counts(text: str, at: str) -> None:
    """Ends, times of writing, what is past and what is far ahead are none."""
    assert stated(text) == at


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("will be reclaimed within the hour", "29 13:00"),
        ("will be reclaimed within one (1) hour", "29 13:00"),
        ("will be reclaimed in one or two hours", "29 13:00"),
        ("will be reclaimed in a few minutes", "29 12:03"),
        ("will be reclaimed immediately", "29 12:00"),
        ("is being terminated with immediate effect", "29 12:00"),
        ("will be immediately interrupted", "29 12:00"),
        ("will be reclaimed immediately, at 2026-11-29 13:30 UTC", "29 13:30"),
        ("will be reclaimed at 11:50 UTC", "29 11:50"),
        ("will be reclaimed at 14:10 UTC", "29 14:00"),
    ],
)
def test_a_span_and_a_time_without_a_day_count_from_the_mail(text: str, at: str) -> None:
    """The earlier end of a range; the next such time of day, or the one that has just been."""
    assert f"{min(read(text).at, SIGNED + timedelta(hours=2)):%d %H:%M}" == at


@pytest.mark.parametrize(
    "text",
    [
        "your trial ends on December 7, 2026 at 12:00 UTC, and the Droplet will be terminated then",
        "will be destroyed in 7 days",
        "will be destroyed by December 10, 2026",
        "will be destroyed in two to three days",
        "will be powered off within 3 days",
        "will be terminated in one week",
        "will be reclaimed in two months",
        "will be reclaimed in 72 hours",
        "starting January 1, 2027, Spot Droplets will be reclaimed with one hour of notice",
        "the preview ends on 31-Jan-2027. It will be reclaimed then.",
        "will be reclaimed on Thursday",
        "will be reclaimed next month",
        "will be reclaimed in the coming days",
        "will be reclaimed at 2026-12-07 13:30 UTC",
    ],
)
def test_a_time_days_ahead_is_told_as_such(text: str) -> None:
    """It is no notice of two hours."""
    assert read(text).is_far
    assert not read(f"{text}. Spot Droplet b will be reclaimed at 2026-11-29 13:30 UTC.").is_far


@pytest.mark.parametrize(
    "text",
    [
        "will be reclaimed. Its snapshots are kept until December 31, 2026",
        "will be reclaimed. It was created on January 31, 2026",
        "will be reclaimed tomorrow",
        "will be reclaimed today",
        "will be reclaimed in two hours",
        "our conference is on December 7, 2026",
    ],
)
def test_a_day_of_something_else_is_not_far(text: str) -> None:
    """Nor is what is past, or within two days."""
    assert not read(text).is_far


@pytest.mark.hostile(48)
@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("moved from 2026-11-29 12:30 UTC to 2026-11-29 13:30 UTC", "29 13:30"),
        ("moved from 12:30 UTC to 13:30 UTC on November 29, 2026", "29 13:30"),
        ("brought forward from 13:30 UTC to 12:30 UTC on November 29, 2026", "29 12:30"),
        ("originally scheduled for 2026-11-29 12:30 UTC, will now start at 2026-11-29 13:30 UTC", "29 13:30"),
        ("not at 2026-11-29 12:30 UTC but at 2026-11-29 13:30 UTC", "29 13:30"),
        ("wrongly given as 2026-11-29 12:30 UTC. Correct start: 2026-11-29 13:30 UTC", "29 13:30"),
        ("it will start at 2026-11-29 13:30 UTC instead of 2026-11-29 12:30 UTC", "29 13:30"),
        ("we said at 2026-11-29 12:30 UTC. It is 2026-11-29 13:30 UTC", "29 12:30"),
        ("previously on 2026-11-29 12:30 UTC", "29 12:30"),
    ],
)
def test_a_correction_drops_the_time_that_no_longer_holds(text: str, at: str) -> None:
    """Where it is marked as such; else the earlier one counts."""
    assert stated(text, is_correction=True) == at


def test_from_and_to_are_a_window_where_nothing_was_moved() -> None:
    """Its start counts."""
    assert stated("offline from 2026-11-29 13:30 UTC to 2026-11-29 13:40 UTC") == "29 13:30"


def test_no_time_is_later_than_two_hours_after_the_mail_came() -> None:
    """A mail that promises more is not believed."""
    found = read("will be reclaimed at 2026-11-30 12:00 UTC")
    assert (found.at, found.is_stated) == (RECEIVED + timedelta(hours=2), False)
    assert "2026-11-30T12:00:00.000Z" in found.why


@pytest.mark.hostile(47)
def test_a_late_mail_shortens() -> None:
    """The fall-back counts from when it was written; what it states still holds when it is past."""
    late = SIGNED + timedelta(hours=3)
    assert when("", signed_at=SIGNED, received_at=late).at == SIGNED + timedelta(minutes=105)
    past = when("reclaimed at 2026-11-29 13:30 UTC", signed_at=SIGNED, received_at=late)
    assert (past.at, past.is_stated) == (datetime(2026, 11, 29, 13, 30, tzinfo=UTC), True)


@pytest.mark.hostile(53)
@pytest.mark.parametrize(
    "signed_at", [None, datetime.max.replace(tzinfo=UTC), SIGNED + timedelta(days=400)], ids=str
)
def test_without_a_date_or_with_one_ahead_the_arrival_counts(signed_at: datetime | None) -> None:
    """Nothing lengthens."""
    found = when("", signed_at=signed_at, received_at=RECEIVED)
    assert found.at == RECEIVED + timedelta(minutes=105)
    assert "its arrival" in found.why


@pytest.mark.hostile(53)
def test_a_date_of_another_age_is_no_arithmetic_beyond_the_calendar() -> None:
    """The deadline is past, and a time."""
    found = when("in two hours reclaimed", signed_at=datetime.min.replace(tzinfo=UTC), received_at=RECEIVED)
    assert found.at < RECEIVED


@pytest.mark.hostile(55)
def test_all_is_utc_whatever_zone_the_arguments_have() -> None:
    """Also across the hour that Berlin has twice, 2026-10-25 02:00 to 03:00."""
    berlin = timezone(timedelta(hours=2))
    signed_at = datetime(2026, 10, 25, 2, 30, tzinfo=berlin)
    found = when("reclaimed in 90 minutes", signed_at=signed_at, received_at=signed_at)
    assert found.at == datetime(2026, 10, 25, 2, 0, tzinfo=UTC)
    assert found.at.tzinfo is UTC
    assert when("", signed_at=signed_at, received_at=signed_at).at.tzinfo is UTC


def test_a_missing_year_is_the_nearest() -> None:
    """Also across New Year."""
    near = datetime(2026, 12, 31, 23, tzinfo=UTC)
    assert moment("January 1", "0:30", "UTC", near=near) == datetime(2027, 1, 1, 0, 30, tzinfo=UTC)
    assert moment("Feb 29", "0:30", "UTC", near=datetime(2028, 2, 1, tzinfo=UTC)) == datetime(
        2028, 2, 29, 0, 30, tzinfo=UTC
    )


def test_today_is_the_day_in_the_zone_that_is_given() -> None:
    """At 23:30 UTC it is tomorrow already two hours east."""
    near = datetime(2026, 11, 29, 23, 30, tzinfo=UTC)
    assert moment("today", "02:00", "+02:00", near=near) == datetime(2026, 11, 30, 0, 0, tzinfo=UTC)
    assert moment("tomorrow", "02:00", "UTC", near=near) == datetime(2026, 11, 30, 2, 0, tzinfo=UTC)


def test_a_flood_of_times_costs_no_more_than_the_first_ones() -> None:
    """What stands beyond the limit is not read; what stands before it is."""
    flood = "End: 2026-11-29 13:10 UTC. " * MAX_TIMES
    assert stated(f"Start: 2026-11-29 13:30 UTC. {flood}") == "29 13:30"
    assert stated(f"{flood} Start: 2026-11-29 13:30 UTC.") == ""


def test_why_shows_no_more_than_a_piece_and_nothing_raw() -> None:
    """The words are a stranger's."""
    found = read("will be reclaimed at 2026-11-29 13:30 UTC")
    assert found.why == "stated: 2026-11-29 13:30 UTC"
