# SPDX-License-Identifier: Apache-2.0
"""What documents of Scheduled Events mean: tables over the pure function.

How they are fetched is tested in `test_azure`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spotwatch.errors import Malformed
from spotwatch.model import Certainty, Evidence, Kind, Notice
from spotwatch.providers._azure_parse import Known, Parsed, parse
from spotwatch.testing import EPOCH
from tests.providers.azure_server import event, payload

ME = "aks-gpu-vmss_0"
NOT_BEFORE = datetime(2026, 8, 1, 5, 41, 2, tzinfo=UTC)


def read(document: object, *, me: str | None = ME, known: dict[str, Known] | None = None) -> Parsed:
    """Parse at EPOCH."""
    return parse(document, me=me, known=known or {}, seen_at=EPOCH)


def only(**changes: Any) -> Notice:
    """Return the one notice of one event that reads well."""
    parsed = read({"Events": [event(**changes)]})
    assert parsed.error is None
    (notice,) = parsed.notices
    return notice


@pytest.mark.parametrize(
    ("kind", "wanted", "certainty", "ends_machine", "is_final"),
    [
        ("Preempt", Kind.RECLAIM, Certainty.ESTIMATE, True, False),
        ("Terminate", Kind.RECLAIM, Certainty.EXACT, True, True),
        ("Reboot", Kind.RECLAIM, Certainty.EXACT, True, False),
        ("Redeploy", Kind.RECLAIM, Certainty.EXACT, True, False),
        ("Freeze", Kind.MAINTENANCE, Certainty.EXACT, False, False),
        ("Decommission", Kind.MAINTENANCE, Certainty.ESTIMATE, False, False),
    ],
)
def test_each_type_means_what_the_guide_says(
    kind: str, wanted: Kind, certainty: Certainty, ends_machine: bool, is_final: bool
) -> None:
    """Kind, certainty and finality follow the type, whatever its case; the time is NotBefore."""
    for spelled in (kind, kind.upper()):
        notice = only(EventType=spelled)
        assert (notice.kind, notice.certainty) == (wanted, certainty)
        assert (notice.ends_machine, notice.is_final) == (ends_machine, is_final)
        assert notice.deadline == NOT_BEFORE
        assert spelled in notice.detail


def test_rebalance_recommendation_is_a_risk_without_a_deadline() -> None:
    """The eviction may never come, so its time is none to plan by."""
    notice = only(EventType="SpotRebalanceRecommendation")
    assert notice.kind is Kind.AT_RISK
    assert notice.deadline is None
    assert not notice.ends_machine


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Sat, 1 Aug 2026 05:41:02 GMT", NOT_BEFORE),
        ("Sat, 01 Aug 2026 05:41:02 GMT", NOT_BEFORE),
        ("Tue, 01 Aug 2026 05:41:02 GMT", NOT_BEFORE),
        ("Sat, 01 Aug 2026 13:41:02 +0800", NOT_BEFORE),
        ("Sat, 01 Aug 2026 05:41:02 -0000", NOT_BEFORE),
        ("", None),
        (None, None),
        (..., None),
    ],
)
def test_not_before_is_read_as_written(text: object, wanted: datetime | None) -> None:
    """One-digit days and wrong weekdays are fine, no time is no deadline, and nothing is ever naive."""
    deadline = only(NotBefore=text).deadline
    assert deadline == wanted
    assert deadline is None or deadline.utcoffset() == timedelta(0)


@pytest.mark.hostile(68)
@pytest.mark.parametrize("text", ["soon", 7, [], "2026", "Sat, 41 Aug 2026 05:41:02 GMT", "x" * 5000])
def test_unreadable_time_fails_the_signal_and_keeps_the_notice(text: object) -> None:
    """An eviction whose time cannot be read is still an eviction."""
    parsed = read({"Events": [event(NotBefore=text)]})
    assert isinstance(parsed.error, Malformed)
    (notice,) = parsed.notices
    assert notice.kind is Kind.RECLAIM
    assert notice.deadline is None


def test_only_events_that_list_this_machine_count() -> None:
    """A neighbour's Redeploy is nothing; names are compared without case."""
    parsed = read(payload("freeze-then-preempt.json"))
    assert [notice.kind for notice in parsed.notices] == [Kind.MAINTENANCE, Kind.RECLAIM]
    assert [notice.sole_resource for notice in parsed.notices] == [False, True]
    assert [notice.has_started for notice in parsed.notices] == [True, False]


@pytest.mark.parametrize("me", ["aks-gpu-vmss000000", "aks-gpu-vmss_00", "aks-gpu-vmss", "0", ""])
def test_a_similar_name_is_another_machine(me: str) -> None:
    """Neither the host name of a scale set's machine nor a part of the name matches."""
    assert read(payload("preempt-scheduled.json"), me=me).notices == ()


def test_the_guides_sample_is_read_despite_its_weekday() -> None:
    """Freeze with two machines, its id in lower case."""
    (notice,) = read(payload("freeze-scheduled.json"), me="westno_1").notices
    assert notice.id == "azure:c7061bac-afdc-4513-b24b-aa5f13a16123"
    assert notice.deadline == datetime(2026, 4, 11, 22, 26, 58, tzinfo=UTC)
    assert not notice.sole_resource


def test_scheduled_and_started_with_one_event_id_are_one_notice() -> None:
    """The case of the id does not matter."""
    scheduled = read({"Events": [event()]})
    started = read(
        {"Events": [event(EventId=event()["EventId"].upper(), EventStatus="Started", NotBefore="")]},
        known=dict(scheduled.known),
    )
    assert [n.id for n in started.notices] == [n.id for n in scheduled.notices]
    assert started.notices[0].has_started


def test_new_event_id_at_the_start_stays_the_same_notice() -> None:
    """The first id is kept as long as the event lives, and the newest spelling is what gets approved."""
    first = read(payload("preempt-scheduled.json"))
    second = read(payload("preempt-started-new-id.json"), known=dict(first.known))
    third = read(payload("preempt-started-new-id.json"), known=dict(second.known))
    ids = {notice.id for parsed in (first, second, third) for notice in parsed.notices}
    assert ids == {"azure:a1b2c3d4-0000-4111-8222-333344445555"}
    assert [known.spelled for known in third.known.values()] == ["FFFF0000-0000-4111-8222-333344445555"]


@pytest.mark.parametrize(
    "document",
    [
        {"Events": [event(EventId="new")]},
        {"Events": [event(EventId="new", EventStatus="Started", EventType="Freeze")]},
        {"Events": [event(), event(EventId="new", EventStatus="Started")]},
    ],
    ids=["not-started", "other-type", "old-one-still-there"],
)
def test_an_id_is_inherited_only_by_the_same_event(document: dict[str, Any]) -> None:
    """A second event of another type, or beside the first, or not started, is a second notice."""
    first = read(payload("preempt-scheduled.json"))
    parsed = read(document, known=dict(first.known))
    assert "azure:new" in {notice.id for notice in parsed.notices}


def test_an_id_is_inherited_once() -> None:
    """Of two new events of the type only one can be the one that vanished."""
    first = read(payload("preempt-scheduled.json"))
    both = [event(EventId=name, EventStatus="Started") for name in ("new", "newer")]
    parsed = read({"Events": both}, known=dict(first.known))
    assert [notice.id for notice in parsed.notices] == [first.notices[0].id, "azure:newer"]


@pytest.mark.parametrize("spelled", [..., None, "", 7])
def test_missing_event_id_is_derived_from_what_does_not_slide(spelled: object) -> None:
    """Type and machine give the id; a later NotBefore and the start keep it."""
    scheduled = only(EventId=spelled)
    later = only(EventId=spelled, NotBefore="Sat, 01 Aug 2026 05:41:09 GMT")
    started = only(EventId=spelled, NotBefore="", EventStatus="Started")
    assert scheduled.id == later.id == started.id == "azure:no-id:preempt:aks-gpu-vmss_0"


@pytest.mark.hostile(68)
def test_events_with_one_id_become_one_notice_with_the_sooner_time() -> None:
    """A duplicate in one document is one notice."""
    later = event(NotBefore="Sat, 01 Aug 2026 06:41:02 GMT")
    (notice,) = read({"Events": [later, event(), event(NotBefore="", EventStatus="Started")]}).notices
    assert notice.deadline == NOT_BEFORE
    assert notice.has_started


@pytest.mark.parametrize(
    "bad",
    [
        7,
        None,
        [],
        event(Resources=...),
        event(Resources=[]),
        event(Resources=[7]),
        event(Resources=ME),
        event(EventType=...),
        event(EventType=""),
        event(EventType=7),
    ],
)
def test_a_bad_item_does_not_lose_the_others(bad: object) -> None:
    """The signal fails, so that nothing is withdrawn, and the readable events still count."""
    for items in ([bad, event()], [event(), bad]):
        parsed = read({"Events": items})
        assert isinstance(parsed.error, Malformed)
        assert [notice.kind for notice in parsed.notices] == [Kind.RECLAIM]


@pytest.mark.parametrize(
    "document", [None, 7, "x", [], {}, {"Events": None}, {"Events": {}}, {"Events": "x"}]
)
def test_what_is_no_document_is_malformed(document: object) -> None:
    """An answer without a list of events never reads as "no events"."""
    with pytest.raises(Malformed):
        read(document)


@pytest.mark.hostile(68)
def test_a_flood_of_events_is_cut_and_fails_the_signal() -> None:
    """More than a thousand events are not all read, and their absence proves nothing."""
    flood = [event(EventId=str(n)) for n in range(1001)]
    parsed = read({"Events": flood})
    assert len(parsed.notices) == 1000
    assert isinstance(parsed.error, Malformed)


def test_without_a_name_a_lone_event_is_weak_and_a_shared_one_is_nobodys() -> None:
    """Weak evidence flushes and never stops, and never counts as this machine's alone."""
    lone = read({"Events": [event(), event(EventId="b", Resources=["x_1", "x_2"])]}, me=None)
    (notice,) = lone.notices
    assert notice.evidence is Evidence.WEAK
    assert not notice.sole_resource
    known = read({"Events": [event()]})
    assert known.notices[0].id == notice.id
    assert known.notices[0].evidence is Evidence.STRONG


def test_text_of_the_cloud_is_cut_and_printable() -> None:
    """Nothing that the cloud writes can break a log line or grow an id without end."""
    notice = only(EventId="A\n" * 500, Description="\x1b[31m\n" + "x" * 5000)
    assert notice.id.isprintable()
    assert len(notice.id) < 200
    assert notice.detail.isprintable()
    assert len(notice.detail) <= 160
