# SPDX-License-Identifier: Apache-2.0
"""What EC2's list of scheduled events means: documented samples, bad items, and what is over."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from spotwatch.model import Certainty, Kind
from spotwatch.providers._aws_events import SCHEDULED_EVENTS
from spotwatch.providers._aws_parse import parse
from spotwatch.testing import EPOCH
from tests.providers.aws_payloads import is_malformed, is_none, raised, served


def test_a_scheduled_reboot_ends_memory_at_its_start() -> None:
    """The documented sample: id, start, and a machine that comes back."""
    notice = raised(SCHEDULED_EVENTS, served("events-reboot"))
    assert notice.id == "instance-event-0d59937288b749b32"
    assert notice.kind is Kind.MAINTENANCE
    assert notice.deadline == datetime(2019, 1, 21, 9, 0, 43, tzinfo=UTC)
    assert notice.certainty is Certainty.EXACT
    assert notice.window_seconds is None
    assert notice.ends_machine
    assert not notice.is_final
    assert notice.detail == "system-reboot: scheduled reboot"


def test_an_unpadded_day_and_unknown_keys_are_read() -> None:
    """Days come without a leading zero, and keys that we do not need come along."""
    notice = raised(SCHEDULED_EVENTS, served("events-mock"))
    assert notice.deadline == datetime(2026, 12, 6, 14, 49, 6, tzinfo=UTC)


@pytest.mark.parametrize(
    ("code", "ends_machine", "is_final"),
    [
        ("instance-stop", True, False),
        ("instance-retirement", True, True),
        ("instance-reboot", True, False),
        ("system-reboot", True, False),
        ("system-maintenance", False, False),
        ("something-new", True, False),
        (None, True, False),
    ],
)
def test_what_each_code_does(code: str | None, ends_machine: bool, is_final: bool) -> None:
    """Each documented code, and an unknown one, which may end the machine."""
    row = {"EventId": "e-1", "Code": code, "NotBefore": "1 Dec 2026 08:00:00 GMT", "State": "active"}
    notice = raised(SCHEDULED_EVENTS, [row])
    assert (notice.ends_machine, notice.is_final) == (ends_machine, is_final)


def test_what_is_over_is_not_in_force() -> None:
    """Completed and canceled, by state or by the prefix of the description, are no notices."""
    assert is_none(SCHEDULED_EVENTS, b"[]")
    assert is_none(SCHEDULED_EVENTS, served("events-history"))
    for over in ({"State": "Completed"}, {"State": "cancelled"}, {"Description": "[Canceled] reboot"}):
        row = {"EventId": "e-1", "Code": "system-reboot", "NotBefore": "nonsense"} | over
        assert is_none(SCHEDULED_EVENTS, json.dumps([row]).encode())


def test_one_bad_item_does_not_lose_the_list() -> None:
    """The good one is raised, a clear event without a time too, and the signal counts as failed."""
    rows = [
        5,
        {"State": "active"},
        {"EventId": "e-bad", "Code": "instance-stop", "NotBefore": "32 Foo 2026", "State": "active"},
        {"EventId": "e-good", "Code": "instance-stop", "NotBefore": "1 Dec 2026 08:00:00 GMT"},
        {"EventId": "e-over", "Code": "instance-stop", "NotBefore": "32 Foo 2026", "State": "completed"},
    ]
    parsed = parse(SCHEDULED_EVENTS, json.dumps(rows).encode(), seen_at=EPOCH)
    by_id = {notice.id: notice for notice in parsed.notices}
    assert set(by_id) == {"e-bad", "e-good"}
    assert by_id["e-bad"].deadline is None
    assert by_id["e-bad"].certainty is Certainty.ESTIMATE
    assert by_id["e-bad"].ends_machine
    assert by_id["e-good"].deadline == datetime(2026, 12, 1, 8, tzinfo=UTC)
    assert parsed.problem is not None
    assert "'32 Foo 2026' of e-bad" in str(parsed.problem)


@pytest.mark.parametrize(
    "start",
    [
        None,
        "",
        "32 Jan 2026 08:00:00 GMT",
        "1 Foo 2026 08:00:00 GMT",
        "1 Jan 2026 25:00:00 GMT",
        5,
        "1 Jan 2026",
    ],
)
def test_an_event_without_a_readable_start_stays_one(start: object) -> None:
    """The machine is warned of, without a time, and the failure is told."""
    row = {"EventId": "e-1", "Code": "system-reboot", "NotBefore": start}
    parsed = parse(SCHEDULED_EVENTS, json.dumps([row]).encode(), seen_at=EPOCH)
    (notice,) = parsed.notices
    assert notice.deadline is None
    assert parsed.problem is not None


def test_an_event_without_an_id_has_a_stable_one() -> None:
    """Code and start stand in for the id, so that two events differ and one stays one."""
    first = {"Code": "system-reboot", "NotBefore": "1 Dec 2026 08:00:00 GMT"}
    second = first | {"NotBefore": "2 Dec 2026 08:00:00 GMT"}
    raw = json.dumps([first, second, first]).encode()
    ids = [notice.id for notice in parse(SCHEDULED_EVENTS, raw, seen_at=EPOCH).notices]
    assert len(ids) == len(set(ids)) == 2
    assert ids == [notice.id for notice in parse(SCHEDULED_EVENTS, raw, seen_at=EPOCH).notices]


@pytest.mark.parametrize("content", [b"", b"{}", b"null", b'"[]"', b"<html>", b"[", b"[" * 60_000])
def test_what_is_no_list_of_eventsis_malformed(content: bytes) -> None:
    """Anything but a list may not withdraw an event."""
    assert is_malformed(SCHEDULED_EVENTS, content)


def test_texts_for_people_stay_on_one_line() -> None:
    """A description cannot forge log lines, nor break a terminal or an encoding."""
    row = {
        "EventId": "e\n1",
        "Code": "system-reboot",
        "NotBefore": "1 Dec 2026 08:00:00 GMT",
        "Description": "a\r\nb\x1b[31m\ud800" + "x" * 5000,
    }
    notice = raised(SCHEDULED_EVENTS, [row])
    assert notice.id == "e?1"
    assert notice.detail.isprintable()
    assert len(notice.detail) < 300
    notice.detail.encode()
