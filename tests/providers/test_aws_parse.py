# SPDX-License-Identifier: Apache-2.0
"""What the bodies of EC2's metadata mean: documented samples, and whatever else may come."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwatch.model import Certainty, Kind, Notice
from spotwatch.providers._aws_events import SCHEDULED_EVENTS
from spotwatch.providers._aws_parse import ASG, INSTANCE_ACTION, REBALANCE, TERMINATION_TIME, parse
from spotwatch.testing import EPOCH
from tests.providers.aws_payloads import FOLDER, load, served

SIGNALS = (INSTANCE_ACTION, TERMINATION_TIME, REBALANCE, ASG, SCHEDULED_EVENTS)


def _raised(signal: str, content: Any) -> Notice:
    """Return the one notice in a body that is wholly good."""
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    parsed = parse(signal, raw, seen_at=EPOCH)
    assert parsed.problem is None
    (notice,) = parsed.notices
    assert (notice.provider, notice.signal, notice.seen_at) == ("aws", signal, EPOCH)
    return notice


def _is_none(signal: str, content: bytes) -> bool:
    parsed = parse(signal, content, seen_at=EPOCH)
    return parsed.problem is None and parsed.notices == ()


def _is_malformed(signal: str, content: bytes) -> bool:
    parsed = parse(signal, content, seen_at=EPOCH)
    return parsed.problem is not None and parsed.problem.body == content and parsed.notices == ()


def test_every_recorded_file_names_its_source() -> None:
    """Each payload opens with where it is from."""
    files = sorted(FOLDER.glob("*.json"))
    assert len(files) >= 9
    for file in files:
        assert load(file.stem)


@pytest.mark.parametrize(("name", "is_final"), [("terminate", True), ("stop", False)])
def test_an_interruption_has_a_time_to_rely_on(name: str, is_final: bool) -> None:
    """Terminate and stop are a reclaim two minutes ahead; only terminate is final."""
    notice = _raised(INSTANCE_ACTION, served(f"instance-action-{name}"))
    assert notice.kind is Kind.RECLAIM
    assert notice.deadline == datetime(2017, 9, 18, 8, 22, tzinfo=UTC)
    assert notice.certainty is Certainty.EXACT
    assert notice.window_seconds == 120
    assert notice.ends_machine
    assert notice.is_final is is_final
    assert name in notice.detail


def test_hibernation_has_no_two_minutes() -> None:
    """Hibernate keeps memory and begins at once, whatever time stands beside it."""
    notice = _raised(INSTANCE_ACTION, served("instance-action-hibernate"))
    assert notice.kind is Kind.HIBERNATE
    assert notice.deadline is None
    assert not notice.ends_machine
    assert not notice.is_final


def test_one_case_however_action_and_time_change() -> None:
    """A sliding time, another action and the legacy path all keep the id."""
    ids = {
        _raised(INSTANCE_ACTION, {"action": action, "time": f"2026-11-29T12:02:{second:02}Z"}).id
        for action in ("stop", "terminate", "hibernate", "explode")
        for second in range(3)
    }
    ids.add(_raised(TERMINATION_TIME, served("termination-time")).id)
    assert len(ids) == 1


@pytest.mark.parametrize(
    ("row", "deadline", "is_final"),
    [
        ({"action": "terminate"}, None, True),
        ({"action": "stop", "time": "soon"}, None, False),
        ({"action": "terminate", "time": 5}, None, True),
        ({"action": "terminate", "time": "2026-02-30T00:00:00Z"}, None, True),
        ({"action": "terminate", "time": "0001-01-01T00:00:00+14:00"}, None, True),
        ({"action": "TERMINATE ", "time": None}, None, True),
        ({"action": "explode"}, None, False),
        (
            {"action": "explode", "time": "2026-11-29T12:02:00Z"},
            datetime(2026, 11, 29, 12, 2, tzinfo=UTC),
            False,
        ),
        ({"time": "2026-11-29T12:02:00Z"}, datetime(2026, 11, 29, 12, 2, tzinfo=UTC), False),
        (
            {"action": ["stop"], "time": "2026-11-29T12:02:00Z"},
            datetime(2026, 11, 29, 12, 2, tzinfo=UTC),
            False,
        ),
    ],
)
def test_half_an_interruption_is_one(row: dict[str, Any], deadline: datetime | None, is_final: bool) -> None:
    """What is clearly an interruption but half unreadable is acted on at once."""
    notice = _raised(INSTANCE_ACTION, row)
    assert notice.kind is Kind.RECLAIM
    assert notice.deadline == deadline
    assert notice.certainty is Certainty.ESTIMATE
    assert notice.is_final is is_final
    assert "unknown action" in notice.detail or "unreadable time" in notice.detail


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-29T12:02:00Z", datetime(2026, 11, 29, 12, 2, tzinfo=UTC)),
        ("2026-11-29T14:02:00.500+02:00", datetime(2026, 11, 29, 12, 2, 0, 500000, tzinfo=UTC)),
        ("2026-11-29T12:02:00", datetime(2026, 11, 29, 12, 2, tzinfo=UTC)),
        (" 2026-11-29 12:02:00Z\n", datetime(2026, 11, 29, 12, 2, tzinfo=UTC)),
    ],
)
def test_times_are_utc(text: str, moment: datetime) -> None:
    """Each readable form becomes aware UTC; EC2 says UTC, so a missing zone is that."""
    notice = _raised(INSTANCE_ACTION, {"action": "stop", "time": text})
    assert notice.deadline == moment
    assert notice.deadline.tzinfo is UTC
    assert notice.certainty is Certainty.EXACT


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'"terminate"',
        b'{"action": ""}',
        b'{"code": 500}',
        b"{",
        b"<html>",
        b"\xff",
    ],
)
def test_what_is_no_interruption_is_malformed(content: bytes) -> None:
    """A body with neither action nor time is kept for inspection and raises nothing."""
    assert _is_malformed(INSTANCE_ACTION, content)


def test_a_termination_time_is_a_final_reclaim() -> None:
    """The legacy path exists for terminations only."""
    notice = _raised(TERMINATION_TIME, served("termination-time"))
    assert notice.kind is Kind.RECLAIM
    assert notice.deadline == datetime(2015, 1, 5, 18, 2, tzinfo=UTC)
    assert notice.certainty is Certainty.EXACT
    assert notice.window_seconds == 120
    assert notice.is_final


@pytest.mark.parametrize(
    "content", [b"none", b"5", b"2015-01-05", b"2015-13-05T18:02:00Z", b"not scheduled\n"]
)
def test_a_termination_time_that_is_no_time_is_no_notice(content: bytes) -> None:
    """EC2 documents a value that is not a time where nothing is due: a status of 200 proves nothing."""
    assert _is_none(TERMINATION_TIME, content)


@pytest.mark.parametrize("content", [b"", b" \n", b"<html>", b'{"a": 1}', b"[]", b"\xff", b"x" * 300])
def test_a_page_is_no_termination_time(content: bytes) -> None:
    """What cannot be a value of that path may not withdraw anything either."""
    assert _is_malformed(TERMINATION_TIME, content)


def test_a_rebalance_recommendation_is_a_risk() -> None:
    """Its time is when it was given, not when anything ends."""
    notice = _raised(REBALANCE, served("rebalance"))
    assert notice.kind is Kind.AT_RISK
    assert notice.deadline is None
    assert not notice.ends_machine
    assert notice.issued_at == datetime(2020, 10, 27, 8, 22, tzinfo=UTC)
    assert _raised(REBALANCE, {"noticeTime": "2026-11-29T12:02:00Z"}).id == notice.id


def test_a_rebalance_recommendation_without_a_readable_time_is_one() -> None:
    """The risk is known although its time is not."""
    notice = _raised(REBALANCE, {"noticeTime": "today"})
    assert notice.kind is Kind.AT_RISK
    assert notice.issued_at is None
    assert "'today'" in notice.detail


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"5", b"<html>"])
def test_what_is_no_rebalance_recommendation_is_malformed(content: bytes) -> None:
    """Without the one key that it consists of, it is none."""
    assert _is_malformed(REBALANCE, content)


def test_of_all_target_states_only_terminated_is_a_notice() -> None:
    """Every documented state is known, and a warm pool's are no notices, `Warmed:Terminated` included."""
    states = load("target-lifecycle-states")["bodies"]
    assert len(states) == 8
    for state in states:
        assert _is_none(ASG, state.encode()) is (state != "Terminated")
    notice = _raised(ASG, b"Terminated\n")
    assert notice.kind is Kind.RECLAIM
    assert notice.deadline is None
    assert notice.certainty is Certainty.ESTIMATE
    assert notice.is_final
    assert notice.id == _raised(ASG, b"Terminated").id


@pytest.mark.parametrize("content", [b"", b"terminating", b'"Terminated"', b"<html>Terminated</html>", b"{}"])
def test_an_unknown_target_state_is_malformed(content: bytes) -> None:
    """A page that contains the word is not the word."""
    assert _is_malformed(ASG, content)


def test_a_scheduled_reboot_ends_memory_at_its_start() -> None:
    """The documented sample: id, start, and a machine that comes back."""
    notice = _raised(SCHEDULED_EVENTS, served("events-reboot"))
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
    notice = _raised(SCHEDULED_EVENTS, served("events-mock"))
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
    notice = _raised(SCHEDULED_EVENTS, [row])
    assert (notice.ends_machine, notice.is_final) == (ends_machine, is_final)


def test_what_is_over_is_not_in_force() -> None:
    """Completed and canceled, by state or by the prefix of the description, are no notices."""
    assert _is_none(SCHEDULED_EVENTS, b"[]")
    assert _is_none(SCHEDULED_EVENTS, served("events-history"))
    for over in ({"State": "Completed"}, {"State": "cancelled"}, {"Description": "[Canceled] reboot"}):
        row = {"EventId": "e-1", "Code": "system-reboot", "NotBefore": "nonsense"} | over
        assert _is_none(SCHEDULED_EVENTS, json.dumps([row]).encode())


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
def test_what_is_no_list_of_events_is_malformed(content: bytes) -> None:
    """Anything but a list may not withdraw an event."""
    assert _is_malformed(SCHEDULED_EVENTS, content)


def test_texts_for_people_stay_on_one_line() -> None:
    """A description cannot forge log lines, nor break a terminal or an encoding."""
    row = {
        "EventId": "e\n1",
        "Code": "system-reboot",
        "NotBefore": "1 Dec 2026 08:00:00 GMT",
        "Description": "a\r\nb\x1b[31m\ud800" + "x" * 5000,
    }
    notice = _raised(SCHEDULED_EVENTS, [row])
    assert notice.id == "e?1"
    assert notice.detail.isprintable()
    assert len(notice.detail) < 300
    notice.detail.encode()


_JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["action", "time", "noticeTime", "NotBefore", "Code", "EventId", "State", "Description"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(
    signal=st.sampled_from(SIGNALS),
    content=st.binary(max_size=60) | _JSON_VALUES.map(lambda value: json.dumps(value).encode()),
)
def test_nothing_crashes_a_parser(signal: str, content: bytes) -> None:
    """Any body gives notices with aware times and printable texts, the same ones twice, or a Malformed."""
    parsed = parse(signal, content, seen_at=EPOCH)
    again = parse(signal, content, seen_at=EPOCH)
    assert [n.id for n in parsed.notices] == [n.id for n in again.notices]
    for notice in parsed.notices:
        for moment in (notice.seen_at, notice.deadline, notice.issued_at):
            assert moment is None or moment.tzinfo is UTC
        assert (notice.id + notice.detail).isprintable()
        assert Notice.from_json(json.loads(json.dumps(notice.to_json()))).id == notice.id
