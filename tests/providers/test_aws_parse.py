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
from tests.providers.aws_payloads import FOLDER, is_malformed, is_none, load, raised, served

SIGNALS = (INSTANCE_ACTION, TERMINATION_TIME, REBALANCE, ASG, SCHEDULED_EVENTS)


def test_every_recorded_file_names_its_source() -> None:
    """Each payload opens with where it is from."""
    files = sorted(FOLDER.glob("*.json"))
    assert len(files) >= 9
    for file in files:
        assert load(file.stem)


@pytest.mark.parametrize(("name", "is_final"), [("terminate", True), ("stop", False)])
def test_an_interruption_has_a_time_to_rely_on(name: str, is_final: bool) -> None:
    """Terminate and stop are a reclaim two minutes ahead; only terminate is final."""
    notice = raised(INSTANCE_ACTION, served(f"instance-action-{name}"))
    assert notice.kind is Kind.RECLAIM
    assert notice.deadline == datetime(2017, 9, 18, 8, 22, tzinfo=UTC)
    assert notice.certainty is Certainty.EXACT
    assert notice.window_seconds == 120
    assert notice.ends_machine
    assert notice.is_final is is_final
    assert name in notice.detail


def test_hibernation_has_no_two_minutes() -> None:
    """Hibernate keeps memory and begins at once, whatever time stands beside it."""
    notice = raised(INSTANCE_ACTION, served("instance-action-hibernate"))
    assert notice.kind is Kind.HIBERNATE
    assert notice.deadline is None
    assert not notice.ends_machine
    assert not notice.is_final


def test_one_case_however_action_and_time_change() -> None:
    """A sliding time, another action and the legacy path all keep the id."""
    ids = {
        raised(INSTANCE_ACTION, {"action": action, "time": f"2026-11-29T12:02:{second:02}Z"}).id
        for action in ("stop", "terminate", "hibernate", "explode")
        for second in range(3)
    }
    ids.add(raised(TERMINATION_TIME, served("termination-time")).id)
    assert len(ids) == 1


@pytest.mark.hostile(68)
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
    notice = raised(INSTANCE_ACTION, row)
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
    notice = raised(INSTANCE_ACTION, {"action": "stop", "time": text})
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
def test_what_is_no_interruptionis_malformed(content: bytes) -> None:
    """A body with neither action nor time is kept for inspection and raises nothing."""
    assert is_malformed(INSTANCE_ACTION, content)


def test_a_termination_time_is_a_final_reclaim() -> None:
    """The legacy path exists for terminations only."""
    notice = raised(TERMINATION_TIME, served("termination-time"))
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
    assert is_none(TERMINATION_TIME, content)


@pytest.mark.parametrize("content", [b"", b" \n", b"<html>", b'{"a": 1}', b"[]", b"\xff", b"x" * 300])
def test_a_page_is_no_termination_time(content: bytes) -> None:
    """What cannot be a value of that path may not withdraw anything either."""
    assert is_malformed(TERMINATION_TIME, content)


def test_a_rebalance_recommendation_is_a_risk() -> None:
    """Its time is when it was given, not when anything ends."""
    notice = raised(REBALANCE, served("rebalance"))
    assert notice.kind is Kind.AT_RISK
    assert notice.deadline is None
    assert not notice.ends_machine
    assert notice.issued_at == datetime(2020, 10, 27, 8, 22, tzinfo=UTC)
    assert raised(REBALANCE, {"noticeTime": "2026-11-29T12:02:00Z"}).id == notice.id


def test_a_rebalance_recommendation_without_a_readable_time_is_one() -> None:
    """The risk is known although its time is not."""
    notice = raised(REBALANCE, {"noticeTime": "today"})
    assert notice.kind is Kind.AT_RISK
    assert notice.issued_at is None
    assert "'today'" in notice.detail


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"5", b"<html>"])
def test_what_is_no_rebalance_recommendationis_malformed(content: bytes) -> None:
    """Without the one key that it consists of, it is none."""
    assert is_malformed(REBALANCE, content)


def test_of_all_target_states_only_terminated_is_a_notice() -> None:
    """Every documented state is known, and a warm pool's are no notices, `Warmed:Terminated` included."""
    states = load("target-lifecycle-states")["bodies"]
    assert len(states) == 8
    for state in states:
        assert is_none(ASG, state.encode()) is (state != "Terminated")
    notice = raised(ASG, b"Terminated\n")
    assert notice.kind is Kind.RECLAIM
    assert notice.deadline is None
    assert notice.certainty is Certainty.ESTIMATE
    assert notice.is_final
    assert notice.id == raised(ASG, b"Terminated").id


@pytest.mark.parametrize("content", [b"", b"terminating", b'"Terminated"', b"<html>Terminated</html>", b"{}"])
def test_an_unknown_target_stateis_malformed(content: bytes) -> None:
    """A page that contains the word is not the word."""
    assert is_malformed(ASG, content)


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
