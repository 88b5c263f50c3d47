# SPDX-License-Identifier: Apache-2.0
"""The AWS provider against a strict service: which signal is asked when, and what one failure means."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from spotwatch.errors import Malformed, Unavailable
from spotwatch.model import Kind
from spotwatch.providers import Identified, load
from spotwatch.providers.aws import Aws, Config
from spotwatch.testing import FakeClock
from tests.providers.aws_payloads import served
from tests.providers.imds import PATHS, TERMINATE, Imds, failed_types, make, polled
from tests.providers.raw_server import Behaviour, after, body, hang, in_turn, status
from tests.quiet import in_quiet_time, since, virtual_now


def test_it_is_found_by_name() -> None:
    """The module is the registration."""
    assert load("aws") is Aws
    assert Aws.config_class is Config
    assert isinstance(make("http://127.0.0.1:1"), Identified)


@in_quiet_time
async def test_404_is_none_everywhere() -> None:
    """A machine without any notice answers 404 on all five paths, and all five count as answered."""
    async with polled(Imds()) as provider:
        answer = await provider.notices()
    assert answer.answered == set(provider.signals) == set(PATHS)
    assert answer.notices == ()
    assert answer.failed == {}


@in_quiet_time
async def test_an_interruption_is_seen_with_the_servers_time() -> None:
    """The notice and the Date of the answer come out of the first poll, with one token for all."""
    imds = Imds()
    imds.shows["instance-action"] = TERMINATE
    async with polled(imds) as provider:
        answer = await provider.notices()
    (notice,) = answer.notices
    assert notice.kind is Kind.RECLAIM
    assert answer.server_at == datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
    assert imds.puts == 1


@in_quiet_time
async def test_all_signals_at_once() -> None:
    """Every signal raises its own notice in one poll."""
    imds = Imds()
    imds.shows = {
        "instance-action": TERMINATE,
        "termination-time": body(served("termination-time")),
        "rebalance": body(served("rebalance")),
        "asg": body("Terminated"),
        "scheduled-events": body(served("events-reboot")),
    }
    async with polled(imds) as provider:
        answer = await provider.notices()
    signals = [notice.signal for notice in answer.notices]
    assert sorted(signals) == ["asg", "instance-action", "rebalance", "scheduled-events"]
    assert len({notice.id for notice in answer.notices}) == 4


@in_quiet_time
async def test_due_signals_are_asked_at_the_same_time() -> None:
    """Five answers of 0.2 s each take about 0.2 s together."""
    imds = Imds()
    imds.shows = {signal: after(0.2, status(404)) for signal in PATHS}
    async with polled(imds) as provider:
        began = virtual_now()
        answer = await provider.notices()
        assert since(began) == 0.2
    assert answer.answered == set(PATHS)


@in_quiet_time
async def test_each_signal_has_its_own_cadence() -> None:
    """In 60 s of polls each second: 61 for instance-action, one in 5 s for three, one in 30 s for events."""
    imds, clock = Imds(), FakeClock()
    imds.shows["scheduled-events"] = body("[]")
    async with polled(imds, clock) as provider:
        for _ in range(61):
            answer = await provider.notices()
            assert answer.failed == {}
            clock.boot_offset_seconds += 1
    counts = {signal: imds.asked(path) for signal, path in PATHS.items()}
    assert counts == {
        "instance-action": 61,
        "termination-time": 13,
        "rebalance": 13,
        "asg": 13,
        "scheduled-events": 3,
    }


@in_quiet_time
async def test_a_signal_that_is_not_due_is_in_neither_set() -> None:
    """Silence about a signal is neither an answer nor a failure."""
    async with polled(Imds()) as provider:
        await provider.notices()
        answer = await provider.notices()
    assert answer.answered == {"instance-action"}
    assert answer.failed == {}


@in_quiet_time
async def test_jitter_does_not_stretch_the_cadence() -> None:
    """Polls that come a little early do not push the slow signals to the next one."""
    imds, clock = Imds(), FakeClock()
    async with polled(imds, clock) as provider:
        for _ in range(5):
            await provider.notices()
            clock.boot_offset_seconds += 0.95
        await provider.notices()
    assert imds.asked(PATHS["rebalance"]) == 2


@in_quiet_time
async def test_a_slow_signal_that_failed_is_asked_again_within_5_s() -> None:
    """An outage of the list of events costs 5 s, not 30."""
    imds, clock = Imds(), FakeClock()
    imds.shows["scheduled-events"] = in_turn(status(500), body(served("events-reboot")))
    async with polled(imds, clock) as provider:
        assert failed_types(await provider.notices()) == {"scheduled-events": Unavailable}
        clock.boot_offset_seconds += 5
        (notice,) = (await provider.notices()).notices
    assert notice.signal == "scheduled-events"


@pytest.mark.parametrize("broken", sorted(PATHS))
@in_quiet_time
async def test_one_signal_failing_says_nothing_about_another(broken: str) -> None:
    """A path that hangs fails alone, and the notices of all others come out in time."""
    imds = Imds()
    imds.shows = {
        "instance-action": TERMINATE,
        "rebalance": body(served("rebalance")),
        "asg": body("Terminated"),
        "scheduled-events": body(served("events-reboot")),
        broken: hang,
    }
    async with polled(imds, timeout_seconds=0.8) as provider:
        answer = await provider.notices()
    assert failed_types(answer) == {broken: Unavailable}
    assert answer.answered == set(PATHS) - {broken}
    assert broken not in {notice.signal for notice in answer.notices}
    assert len(answer.notices) == (4 if broken == "termination-time" else 3)


@in_quiet_time
async def test_a_list_with_a_bad_event_raises_and_fails() -> None:
    """The signal cannot withdraw, and both the good event and the one without a time are raised."""
    imds = Imds()
    imds.shows["scheduled-events"] = body(
        b'[{"EventId":"e-1","Code":"system-reboot","NotBefore":"1 Dec 2026 08:00:00 GMT"},'
        b'{"EventId":"e-2","Code":"system-reboot","NotBefore":"?"}]'
    )
    async with polled(imds) as provider:
        answer = await provider.notices()
    assert {notice.id for notice in answer.notices} == {"e-1", "e-2"}
    assert failed_types(answer) == {"scheduled-events": Malformed}
    assert "scheduled-events" not in answer.answered


@in_quiet_time
async def test_the_legacy_time_counts_where_instance_action_is_silent() -> None:
    """A valid time raises the same case that instance-action would, and hands over to it."""
    imds, clock = Imds(), FakeClock()
    imds.shows["termination-time"] = body(served("termination-time"))
    async with polled(imds, clock) as provider:
        (legacy,) = (await provider.notices()).notices
        imds.shows["instance-action"] = TERMINATE
        clock.boot_offset_seconds += 5
        (own,) = (await provider.notices()).notices
    assert (legacy.signal, own.signal) == ("termination-time", "instance-action")
    assert legacy.id == own.id
    assert legacy.kind is Kind.RECLAIM


@in_quiet_time
async def test_the_legacy_time_holds_until_it_is_asked_again() -> None:
    """A notice does not come and go with the slower cadence of its signal, nor with a failure of it."""
    imds, clock = Imds(), FakeClock()
    imds.shows["termination-time"] = in_turn(body(served("termination-time")), status(500), status(404))
    async with polled(imds, clock) as provider:
        seen = []
        for _ in range(12):
            answer = await provider.notices()
            seen.append(len(answer.notices))
            clock.boot_offset_seconds += 1
    assert seen == [1] * 10 + [0] * 2


@pytest.mark.parametrize("afterwards", [status(500), body(served("termination-time"))])
@in_quiet_time
async def test_the_legacy_time_keeps_no_withdrawn_notice_in_force(afterwards: Behaviour) -> None:
    """Once instance-action has spoken, its 404 withdraws, though the old time lingers or fails."""
    imds, clock = Imds(), FakeClock()
    imds.shows = {
        "instance-action": in_turn(body(served("instance-action-terminate")), status(404)),
        "termination-time": in_turn(body(served("termination-time")), afterwards),
    }
    async with polled(imds, clock) as provider:
        seen = []
        for _ in range(12):
            seen.append(len((await provider.notices()).notices))
            clock.boot_offset_seconds += 1
    assert seen == [1] + [0] * 11


@in_quiet_time
async def test_the_legacy_time_counts_where_instance_action_fails() -> None:
    """A broken instance-action does not hide what the other path says."""
    imds = Imds()
    imds.shows = {"instance-action": status(500), "termination-time": body(served("termination-time"))}
    async with polled(imds) as provider:
        answer = await provider.notices()
    assert [notice.signal for notice in answer.notices] == ["termination-time"]
    assert failed_types(answer) == {"instance-action": Unavailable}


@in_quiet_time
async def test_leaving_while_everything_hangs_leaves_nothing() -> None:
    """A poll that is cancelled takes its requests along."""
    before = asyncio.all_tasks()
    imds = Imds()
    imds.shows = dict.fromkeys(PATHS, hang)
    async with imds:
        async with make(imds.url, timeout_seconds=10) as provider:
            poll = asyncio.create_task(provider.notices())
            await imds.wait_for(lambda: all(imds.asked(path) for path in PATHS.values()))
            poll.cancel()
            with pytest.raises(asyncio.CancelledError):
                await poll
        await imds.wait_until_idle()
        assert asyncio.all_tasks() == before


@in_quiet_time
async def test_seen_at_is_the_clocks() -> None:
    """Moments come from the clock that was handed in, also for the legacy time that is repeated."""
    imds, clock = Imds(), FakeClock()
    imds.shows["termination-time"] = body(served("termination-time"))
    async with polled(imds, clock) as provider:
        for offset in (0, 1):
            clock.wall_offset_seconds = 3600.0 * offset
            (notice,) = (await provider.notices()).notices
            assert notice.seen_at == clock.now()
