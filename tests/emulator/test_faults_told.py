# SPDX-License-Identifier: Apache-2.0
"""Every fault that a good answer tells: wrong times, notices that come, go, double or are another's.

Those that spoil the answer: `test_faults`. DigitalOcean's messages: `test_digitalocean`.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import pytest

from spotwatch.emulator import Emulator
from tests.emulator.client import (
    ACTION,
    AZURE,
    EVENTS,
    GOOGLE,
    PAGES,
    V1,
    Got,
    HandClock,
    ask,
    headers_for,
    token,
)


def times(name: str, got: Got) -> list[datetime]:
    """Return the deadlines that an answer tells."""
    if name == "aws":
        return [datetime.fromisoformat(json.loads(got.body)["time"])]
    if name == "gcp":
        return [datetime.fromisoformat(json.loads(got.body)["window_start_time"])]
    return [parsedate_to_datetime(e["NotBefore"]) for e in json.loads(got.body)["Events"]]


@pytest.mark.parametrize("name", ["aws", "gcp", "azure"])
async def test_faults_about_time(name: str) -> None:
    """A time slides, lies an hour back, or is off together with the Date header."""
    clock = HandClock()
    path = f"{V1}/upcoming-maintenance" if name == "gcp" else PAGES[name][0]
    async with Emulator(name, clock=clock) as cloud:
        cloud.announce(120, "upcoming-maintenance" if name == "gcp" else None)
        headers = await headers_for(cloud)

        async def told() -> tuple[datetime, datetime]:
            got = await ask(cloud, path, headers)
            return times(name, got)[0], parsedate_to_datetime(got.headers["date"])

        true = datetime(2026, 11, 29, 12, 2, tzinfo=UTC)
        assert await told() == (true, clock.now())
        cloud.fault("sliding-time", times=2)
        assert (await told())[0] == true
        clock.seconds = 10
        assert ((await told())[0] - true).total_seconds() == 10
        assert (await told())[0] == true
        cloud.fault("past-time", times=1)
        assert (await told())[0] == datetime(2026, 11, 29, 11, 0, tzinfo=UTC)
        for seconds in (None, -90.0):
            cloud.fault("clock-skew", times=1, seconds=seconds)
            when, date = await told()
            off = 3600 if seconds is None else seconds
            assert (when - true).total_seconds() == off
            assert (date - clock.now()).total_seconds() == off


async def notices(cloud: Emulator) -> int:
    """Return how many notices a reader of the main signal sees."""
    got = await ask(cloud, PAGES[cloud.name][0], await headers_for(cloud))
    if cloud.name == "aws":
        return int(got.status == 200)
    if cloud.name == "gcp":
        return int(got.text == "TRUE")
    return len(json.loads(got.body)["Events"])


@pytest.mark.parametrize("name", ["aws", "gcp", "azure"])
async def test_withdrawal_and_flicker(name: str) -> None:
    """A withdrawn notice is not seen while the fault lasts; a flickering one in every other answer."""
    async with Emulator(name) as cloud:
        cloud.announce()
        cloud.fault("withdrawal", times=2)
        assert [await notices(cloud) for _ in range(3)] == [0, 0, 1]
        cloud.fault("flicker", times=5)
        assert [await notices(cloud) for _ in range(6)] == [1, 0, 1, 0, 1, 1]


@pytest.mark.parametrize("name", ["aws", "gcp"])
async def test_neighbour_is_not_shown_by_a_service_of_one_machine(name: str) -> None:
    """What concerns another machine is not in this machine's metadata."""
    async with Emulator(name) as cloud:
        cloud.announce()
        cloud.fault("neighbour")
        assert await notices(cloud) == 0


async def test_neighbour_is_broadcast_on_azure() -> None:
    """Azure tells everybody, with the other one's name."""
    async with Emulator("azure") as cloud:
        cloud.announce()
        cloud.fault("neighbour", "Preempt")
        events = json.loads((await ask(cloud, EVENTS, AZURE)).body)["Events"]
    assert [e["Resources"] for e in events] == [["spot-vmss_7"]]


async def test_duplicate() -> None:
    """Told twice: a key again in AWS's JSON, a list's item again, an event again, a new etag of Google's."""
    clock = HandClock()
    async with Emulator("aws", clock=clock) as aws:
        aws.announce()
        aws.announce(signal="scheduled-events")
        aws.fault("duplicate")
        headers = await token(aws)
        action = await ask(aws, ACTION, headers)
        listed = json.loads((await ask(aws, "/latest/meta-data/events/maintenance/scheduled", headers)).body)
    assert action.text.count('"action": "terminate"') == 2
    assert json.loads(action.body)["action"] == "terminate"
    assert listed[0] == listed[1]
    async with Emulator("azure") as azure:
        azure.announce()
        azure.fault("duplicate")
        events = json.loads((await ask(azure, EVENTS, AZURE)).body)["Events"]
    assert len(events) == 2
    assert events[0] == events[1]
    async with Emulator("gcp", clock=clock) as gcp:
        gcp.announce()
        gcp.fault("duplicate")
        first = await ask(gcp, f"{V1}/preempted", GOOGLE)
        clock.seconds += 1
        second = await ask(
            gcp, f"{V1}/preempted?wait_for_change=true&last_etag={first.headers['etag']}", GOOGLE
        )
    assert (first.text, second.text) == ("TRUE", "TRUE")
