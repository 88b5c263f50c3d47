# SPDX-License-Identifier: Apache-2.0
"""The metrics: all there from the start, NaN where nothing is known, and no label that grows."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spotwatch import __version__
from spotwatch.metrics import Metrics
from spotwatch.model import Event
from spotwatch.testing import EPOCH
from spotwatch.trainers import NOTHING_KNOWN

GOLDEN = Path(__file__).parent / "golden" / "metrics.txt"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def metrics() -> Metrics:
    """Of a daemon with two providers, one of which takes webhooks."""
    return Metrics(["aws", "digitalocean"], ["digitalocean"])


def send(metrics: Metrics, name: str, provider: str = "aws", **data: Any) -> None:
    """Let something happen."""
    metrics.on_event(Event(at=EPOCH, name=name, provider=provider, data=data))


def watch(metrics: Metrics, **changed: Any) -> None:
    """Let a tick of the runner end, in which nothing is known but what is given."""
    nothing: dict[str, Any] = {"active": {}, "phases": {}, "deadline": None, "estimate_seconds": 30.0}
    send(metrics, "watched", **{**nothing, **NOTHING_KNOWN, **changed})


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """Return a sample; None when there is no such series."""
    return metrics.registry.get_sample_value(f"spotwatch_{name}", labels)


def names(metrics: Metrics) -> set[str]:
    """Return every series: name and labels."""
    text = metrics.render("")[0].decode()
    return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}


def test_golden(metrics: Metrics) -> None:
    """What a fresh daemon shows, to the letter; a change here changes people's dashboards."""
    text = metrics.render("")[0].decode().replace(f'version="{__version__}"', 'version="VERSION"')
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_the_contract_s_names(metrics: Metrics) -> None:
    """Each name that dashboards rely on exists from the start."""
    wanted = (
        "build_info provider_up provider_polls_total provider_poll_duration_seconds_count "
        "provider_last_success_timestamp_seconds notices_total notice_active "
        "notice_deadline_timestamp_seconds orders_total actions_total action_duration_seconds_count "
        "notice_to_order_seconds_count notice_to_saved_seconds_count cases_total webhook_requests_total "
        "journal_errors_total trainer_up trainer_step trainer_steps_per_second checkpoint_step "
        "checkpoint_last_saved_timestamp_seconds checkpoint_stall_seconds checkpoint_save_seconds "
        "checkpoint_size_bytes checkpoint_failures_total work_at_risk_seconds mailbox_heartbeat_age_seconds"
    )
    shown = {name.partition("{")[0].removeprefix("spotwatch_") for name in names(metrics)}
    assert set(wanted.split()) <= shown


@pytest.mark.parametrize("accept", ["", "text/plain;version=0.0.4", OPENMETRICS])
def test_form(metrics: Metrics, accept: str) -> None:
    """Parses, without `_created`; the type follows the Accept header."""
    text, content_type = metrics.render(accept)
    assert b"_created" not in text
    assert content_type.startswith("application/openmetrics-text" if accept == OPENMETRICS else "text/plain")
    if accept != OPENMETRICS:
        assert list(text_string_to_metric_families(text.decode()))


def test_what_promtool_would_say(metrics: Metrics) -> None:
    """Counters end in _total, nothing else does; every family has a help text; units are base units."""
    for family in metrics.registry.collect():
        assert family.documentation.endswith(".")
        assert re.fullmatch(r"spotwatch_[a-z_]+", family.name)
        assert not re.search(r"_(ms|milliseconds|minutes|mb|kb|count|sum|bucket)$", family.name)
        totals = [
            sample.name.endswith("_total") for sample in family.samples if "_created" not in sample.name
        ]
        assert all(totals) if family.type == "counter" else not any(totals)


@pytest.mark.hostile(57)
def test_nothing_that_happens_makes_a_new_series(metrics: Metrics) -> None:
    """Ids, paths and hosts never become labels, nor does a result or reason that nobody foresaw."""
    before = names(metrics)
    notice = {"id": "i-0123", "kind": "reclaim"}
    send(metrics, "noticed", kind="reclaim", notice=notice)
    send(metrics, "notice_stale", kind="reclaim", notice=notice)
    send(metrics, "polled", results=["ok", "never heard of"], seconds=0.1, is_up=1)
    for action in ("handshake", "signal", "hook", "announce", "release", "start"):
        send(metrics, "acted", action=action, result="failed", seconds=0.1, detail="/run/x")
    send(metrics, "webhook", "digitalocean", result="never heard of")
    send(metrics, "save_failed", reason="/home/user", error="x")
    active = {("aws", "reclaim"): 1, ("gone", "reclaim"): 9}
    watch(metrics, active=active, deadline=1.0, phases={"never heard of": 1}, phase="never heard of")
    send(metrics, "answered", answer="durable", notice_to_saved_seconds=[3.0])
    assert names(metrics) == before
    assert value(metrics, "provider_polls_total", provider="aws", result="unexpected") == 1
    assert value(metrics, "webhook_requests_total", provider="digitalocean", result="other") == 1
    assert value(metrics, "checkpoint_failures_total", reason="other") == 1


def test_stale_notices_are_counted(metrics: Metrics) -> None:
    """Not acted on, but seen."""
    send(metrics, "notice_stale", kind="reclaim")
    assert value(metrics, "notices_total", provider="aws", kind="reclaim") == 1


def test_unknown_is_nan_not_zero(metrics: Metrics) -> None:
    """Also again, once something that was known is known no more."""
    facts = {**NOTHING_KNOWN, "step": 7, "is_trainer_up": 1}
    watch(metrics, deadline=5.0, **facts)
    assert (value(metrics, "trainer_step"), value(metrics, "trainer_up")) == (7, 1)
    watch(metrics)
    for name in ("trainer_step", "notice_deadline_timestamp_seconds", "work_at_risk_seconds"):
        shown = value(metrics, name)
        assert shown is not None
        assert math.isnan(shown)
    assert value(metrics, "trainer_up") == 0


def test_what_a_provider_measures_is_a_gauge(metrics: Metrics) -> None:
    """Of names that are known; a provider without them changes nothing."""
    measures = {"mailbox_heartbeat_age_seconds": 7.0, "clock_synced": 0.0, "another": 1.0}
    send(metrics, "measured", "digitalocean", measures=measures)
    send(metrics, "measured", "aws", measures={})
    assert value(metrics, "mailbox_heartbeat_age_seconds") == 7
    assert value(metrics, "clock_synced") == 0
    assert value(metrics, "another") is None


def test_up(metrics: Metrics) -> None:
    """Unknown before the first poll; a poll in which nothing was asked changes nothing."""
    up = value(metrics, "provider_up", provider="aws")
    assert up is not None
    assert math.isnan(up)
    send(metrics, "polled", results=["unavailable"], seconds=1.0, is_up=0)
    send(metrics, "polled", results=[], seconds=0.0, is_up=1)
    assert value(metrics, "provider_up", provider="aws") == 0
    last = value(metrics, "provider_last_success_timestamp_seconds", provider="aws")
    assert last is not None
    assert math.isnan(last)
    send(metrics, "polled", results=["ok"], seconds=1.0, is_up=1)
    assert value(metrics, "provider_last_success_timestamp_seconds", provider="aws") == EPOCH.timestamp()


def test_the_waits(metrics: Metrics) -> None:
    """From notice to order once a case, from notice to saved once a case, and what came of it."""
    send(metrics, "acted", action="handshake", result="ok", seconds=0.1, notice_to_order_seconds=[0.5, 1.5])
    send(metrics, "answered", answer="acknowledged", notice_to_saved_seconds=[4.0])
    assert value(metrics, "notice_to_order_seconds_sum") == 2.0
    assert value(metrics, "notice_to_saved_seconds_count") == 1
    assert value(metrics, "cases_total", outcome="acknowledged") == 1


def test_how_far_trainer_and_cases_are(metrics: Metrics) -> None:
    """One phase of the trainer is 1; cases are counted by phase, and none is left over from before."""
    watch(metrics, phase="uploading", phases={"flushing": 2})
    watch(metrics, phase="durable", phases={"stopped": 1})
    assert value(metrics, "trainer_phase", phase="uploading") == 0
    assert value(metrics, "trainer_phase", phase="durable") == 1
    assert value(metrics, "open_cases", phase="flushing") == 0
    assert value(metrics, "open_cases", phase="stopped") == 1
    assert value(metrics, "open_cases", phase="closed") is None


def test_what_the_process_takes(metrics: Metrics) -> None:
    """The usual series of a process are there once they are asked for."""
    metrics.add_process()
    shown = metrics.registry.get_sample_value("process_resident_memory_bytes")
    assert shown is not None
    assert shown > 1e6


def test_a_provider_found_later(metrics: Metrics) -> None:
    """All its series are there at once."""
    metrics.add_provider("gcp")
    assert value(metrics, "provider_polls_total", provider="gcp", result="ok") == 0
    watch(metrics, active={("gcp", "reclaim"): 1})
    assert value(metrics, "notice_active", provider="gcp", kind="reclaim") == 1


def test_it_is_known_whether_anybody_looks(metrics: Metrics) -> None:
    """Where nobody does, nothing is shown for longer."""
    assert metrics.renders == 0
    metrics.render("")
    assert metrics.renders == 1
