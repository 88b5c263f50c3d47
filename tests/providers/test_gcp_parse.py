# SPDX-License-Identifier: Apache-2.0
"""What the values of Google's metadata keys mean: tables over the pure functions."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spotwatch.errors import Malformed
from spotwatch.model import Certainty, Evidence, Kind, Notice
from spotwatch.providers._gcp_parse import (
    parse_maintenance_event,
    parse_preempted,
    parse_upcoming_maintenance,
)
from spotwatch.testing import EPOCH

PAYLOADS = Path(__file__).parents[1] / "payloads" / "gcp"
WINDOW_START = datetime(2026, 12, 1, 19, 0, 1, tzinfo=UTC)


def payload(name: str) -> dict[str, Any]:
    """Return a recorded document without the note of its source."""
    document: dict[str, Any] = json.loads((PAYLOADS / name).read_text(encoding="utf-8"))
    del document["_source"]
    return document


def upcoming(document: object) -> Notice:
    """Return the one notice of a document that reads well."""
    reading = parse_upcoming_maintenance(json.dumps(document), EPOCH)
    assert reading.error is None
    assert reading.notice is not None
    return reading.notice


@pytest.mark.parametrize("text", ["TRUE", "TRUE\n", " TRUE\r\n"])
@pytest.mark.parametrize(("notice_seconds", "window"), [(0, 30), (120, 150)])
def test_preempted_is_a_reclaim_with_an_estimated_deadline(
    text: str, notice_seconds: float, window: float
) -> None:
    """The deadline is first sight plus the configured notice plus thirty seconds."""
    notice = parse_preempted(text, EPOCH, notice_seconds=notice_seconds).notice
    assert notice is not None
    assert notice.kind is Kind.RECLAIM
    assert notice.certainty is Certainty.ESTIMATE
    assert notice.deadline == EPOCH + timedelta(seconds=window)
    assert notice.window_seconds == window
    assert notice.ends_machine
    assert not notice.is_final


def test_not_preempted_is_no_notice() -> None:
    """FALSE says that nothing is in force."""
    assert parse_preempted("FALSE\n", EPOCH, notice_seconds=0).notice is None


@pytest.mark.parametrize(
    "text", ["", "true", "True", "1", "TRUE TRUE", "NONE", "<html>TRUE</html>", "\u0422RUE"]
)
def test_anything_else_is_malformed_and_kept(text: str) -> None:
    """Only exactly TRUE stops a trainer, and only exactly FALSE says that all is well."""
    with pytest.raises(Malformed) as caught:
        parse_preempted(text, EPOCH, notice_seconds=0)
    assert caught.value.body == text.encode()


@pytest.mark.parametrize("value", ["TERMINATE_ON_HOST_MAINTENANCE", "SHUTDOWN_ON_HOST_MAINTENANCE\n"])
def test_termination_for_maintenance_ends_the_machine_at_a_target(value: str) -> None:
    """The configured notice is what Google aims at."""
    notice = parse_maintenance_event(value, EPOCH, notice_seconds=3600).notice
    assert notice is not None
    assert notice.kind is Kind.MAINTENANCE
    assert notice.ends_machine
    assert notice.certainty is Certainty.TARGET
    assert notice.deadline == EPOCH + timedelta(hours=1)


def test_live_migration_keeps_memory_and_has_no_time() -> None:
    """MIGRATE is worth a flush and no more."""
    notice = parse_maintenance_event("MIGRATE_ON_HOST_MAINTENANCE", EPOCH, notice_seconds=3600).notice
    assert notice is not None
    assert not notice.ends_machine
    assert notice.deadline is None


def test_no_maintenance_and_unknown_maintenance_differ() -> None:
    """NONE is nothing; a word that nobody knows is malformed."""
    assert parse_maintenance_event("NONE", EPOCH, notice_seconds=3600).notice is None
    with pytest.raises(Malformed, match="'REBOOT'"):
        parse_maintenance_event("REBOOT", EPOCH, notice_seconds=3600)


def test_each_way_of_saying_nothing_upcoming_is_understood() -> None:
    """NONE, an empty object and the documented error all mean none."""
    bodies = payload("upcoming-none.json")["bodies"]
    assert len(bodies) == 4
    for body in bodies:
        reading = parse_upcoming_maintenance(f"{body}\n", EPOCH)
        assert reading.notice is None
        assert reading.error is None


def test_pending_window_in_the_guides_spelling_is_exact() -> None:
    """The window's start is a time one can rely on."""
    notice = upcoming(payload("upcoming-pending-snake.json"))
    assert notice.deadline == WINDOW_START
    assert notice.certainty is Certainty.EXACT
    assert notice.kind is Kind.MAINTENANCE
    assert notice.ends_machine
    assert not notice.has_started
    assert notice.evidence is Evidence.STRONG
    assert "SCHEDULED" in notice.detail


def test_ongoing_maintenance_in_the_apis_spelling_has_started() -> None:
    """CamelCase and another zone are read alike; ONGOING passes instead of being withdrawn."""
    notice = upcoming(payload("upcoming-ongoing-camel.json"))
    assert notice.deadline == WINDOW_START
    assert notice.has_started


@pytest.mark.parametrize(
    "document",
    [
        {"Upcoming maintenance": payload("upcoming-pending-snake.json")},
        {"upcomingMaintenance": payload("upcoming-ongoing-camel.json")},
        {"startTime": "2026-12-01T19:00:01Z"},
    ],
)
def test_variants_of_the_document_give_the_same_time(document: dict[str, Any]) -> None:
    """A wrapped document and the older `startTime` are understood."""
    assert upcoming(document).deadline == WINDOW_START


def test_id_survives_a_sliding_window() -> None:
    """A window that moves stays one case."""
    document = payload("upcoming-pending-snake.json")
    moved = document | {"window_start_time": "2026-12-01T19:00:02Z"}
    assert upcoming(document).id == upcoming(moved).id


@pytest.mark.parametrize("start", [None, "", "soon", 7, "2026-12-01T19:00:01", "9999-99-99T00:00:00Z"])
def test_a_window_without_a_readable_time_flushes_and_never_stops(start: object) -> None:
    """A naive or missing time fails the signal and leaves a weak notice."""
    body = json.dumps({"maintenance_status": "PENDING", "window_start_time": start})
    reading = parse_upcoming_maintenance(body, EPOCH)
    assert isinstance(reading.error, Malformed)
    assert reading.notice is not None
    assert reading.notice.evidence is Evidence.WEAK
    assert reading.notice.deadline is None


@pytest.mark.parametrize(
    "body",
    ["", "<html>", "[]", "7", "null", '{"error": "backend"}', '{"other": 1}', "{", "[" * 30000],
    ids=["empty", "html", "list", "number", "null", "other-error", "other", "cut", "deep"],
)
def test_what_is_no_such_document_is_malformed(body: str) -> None:
    """An answer that is not as documented never reads as "nothing planned"."""
    with pytest.raises(Malformed):
        parse_upcoming_maintenance(body, EPOCH)


def test_detail_is_short_and_printable() -> None:
    """What the cloud wrote cannot break a log line."""
    document = payload("upcoming-pending-snake.json") | {"type": "A\nB\x1b[31m" + "C" * 500}
    detail = upcoming(document).detail
    assert detail.isprintable()
    assert len(detail) <= 160
