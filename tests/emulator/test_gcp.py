# SPDX-License-Identifier: Apache-2.0
"""Compute Engine's metadata server as documented, above all its waiting requests.

Faults and stories have tests of their own.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from spotwatch.emulator import Emulator
from tests.emulator.client import GOOGLE, V1, Got, HandClock, ask, until
from tests.quiet import in_quiet_time, since, virtual_now


async def test_header_is_required_and_returned() -> None:
    """Without the header it is 403; both ways the answer says Google."""
    async with Emulator("gcp") as cloud:
        refused = await ask(cloud, f"{V1}/preempted")
        root = await ask(cloud, "/")
        got = await ask(cloud, f"{V1}/preempted", GOOGLE)
    assert refused.status == 403
    assert [g.headers["metadata-flavor"] for g in (refused, root, got)] == ["Google"] * 3
    assert (got.status, got.text, got.headers["content-type"]) == (200, "FALSE", "application/text")
    assert len(got.headers["etag"]) == 16


async def test_values_of_the_signals() -> None:
    """The three signals have their documented values, told and withdrawn one by one."""
    async with Emulator("gcp", clock=HandClock()) as cloud:
        assert (await ask(cloud, f"{V1}/maintenance-event", GOOGLE)).text == "NONE"
        cloud.announce(signal="maintenance-event")
        cloud.announce(30)
        assert (await ask(cloud, f"{V1}/maintenance-event", GOOGLE)).text == "TERMINATE_ON_HOST_MAINTENANCE"
        assert (await ask(cloud, f"{V1}/preempted", GOOGLE)).text == "TRUE"
        cloud.announce(signal="maintenance-event", value="MIGRATE_ON_HOST_MAINTENANCE")
        cloud.withdraw("preempted")
        assert (await ask(cloud, f"{V1}/maintenance-event", GOOGLE)).text == "MIGRATE_ON_HOST_MAINTENANCE"
        assert (await ask(cloud, f"{V1}/preempted", GOOGLE)).text == "FALSE"


@pytest.mark.parametrize("none", [None, "NONE", {}])
async def test_upcoming_maintenance(none: object) -> None:
    """All three shapes of nothing, and both spellings of something."""
    path = f"{V1}/upcoming-maintenance?alt=json"
    async with Emulator("gcp", clock=HandClock(), no_maintenance=none) as cloud:
        idle = await ask(cloud, path, GOOGLE)
        cloud.announce(3600, "upcoming-maintenance")
        snake = json.loads((await ask(cloud, path, GOOGLE)).body)
        cloud.announce(3600, "upcoming-maintenance", camel_case=True, status="ONGOING", kind="UNSCHEDULED")
        camel = json.loads((await ask(cloud, path, GOOGLE)).body)
    if none is None:
        assert json.loads(idle.body) == {"error": "no notifications have been received yet, try again later"}
    else:
        assert idle.text == ("NONE" if none else "{}")
    assert snake == {
        "can_reschedule": False,
        "latest_window_start_time": "2026-11-29T13:00:00Z",
        "maintenance_reasons": ["SCHEDULED_INFRASTRUCTURE_UPDATE"],
        "maintenance_status": "PENDING",
        "type": "SCHEDULED",
        "window_end_time": "2026-11-29T17:00:00Z",
        "window_start_time": "2026-11-29T13:00:00Z",
    }
    assert (camel["maintenanceStatus"], camel["type"]) == ("ONGOING", "UNSCHEDULED")
    assert camel["windowStartTime"] == "2026-11-29T13:00:00Z"


async def test_directories_and_formats() -> None:
    """A directory lists, redirects to its slash, and comes whole as JSON or text."""
    async with Emulator("gcp") as cloud:
        listing = (await ask(cloud, f"{V1}/", GOOGLE)).text
        moved = await ask(cloud, f"{V1}/scheduling", GOOGLE)
        whole = json.loads((await ask(cloud, f"{V1}/?recursive=true", GOOGLE)).body)
        text = (await ask(cloud, f"{V1}/?recursive=true&alt=text", GOOGLE)).text
        quoted = (await ask(cloud, f"{V1}/preempted?alt=json", GOOGLE)).text
        number = (await ask(cloud, f"{V1}/id?alt=json", GOOGLE)).text
        zone = (await ask(cloud, f"{V1}/zone", GOOGLE)).text
        preemptible = (await ask(cloud, f"{V1}/scheduling/preemptible", GOOGLE)).text
        missing = await ask(cloud, f"{V1}/shutdown-details/x", GOOGLE)
    assert {"preempted", "scheduling/", "zone"} <= set(listing.split("\n"))
    assert (moved.status, moved.headers["location"]) == (301, f"{V1}/scheduling/")
    assert whole["preempted"] == "FALSE"
    assert whole["scheduling"] == {
        "automaticRestart": "FALSE",
        "onHostMaintenance": "TERMINATE",
        "preemptible": "TRUE",
    }
    assert whole["id"] == int(number)
    assert "scheduling/preemptible TRUE" in text.split("\n")
    assert (quoted, preemptible, missing.status) == ('"FALSE"', "TRUE", 404)
    assert zone == "projects/123456789012/zones/us-central1-a"


async def test_gke_hides_the_signals() -> None:
    """GKE's metadata server knows the machine's name and nothing of its end."""
    async with Emulator("gcp", gke=True) as cloud:
        cloud.announce()
        assert (await ask(cloud, f"{V1}/preempted", GOOGLE)).status == 404
        assert (await ask(cloud, f"{V1}/maintenance-event", GOOGLE)).status == 404
        assert (await ask(cloud, f"{V1}/id", GOOGLE)).status == 200


@in_quiet_time
async def test_waiting_returns_at_once_on_a_change() -> None:
    """A held request is answered by the change it waits for, and by no other key's."""
    async with Emulator("gcp") as cloud:
        etag = (await ask(cloud, f"{V1}/preempted", GOOGLE)).headers["etag"]
        path = f"{V1}/preempted?wait_for_change=true&timeout_sec=60&last_etag={etag}"
        waiting = asyncio.create_task(ask(cloud, path, GOOGLE, limit_seconds=10))
        await until(lambda: len(cloud.requests) == 2)
        cloud.announce(signal="maintenance-event")
        await ask(cloud, f"{V1}/maintenance-event", GOOGLE)
        assert not waiting.done()
        began = virtual_now()
        cloud.announce()
        got: Got = await waiting
        assert since(began) == 0
    assert got.text == "TRUE"
    assert got.headers["etag"] != etag


@in_quiet_time
async def test_waiting_times_out_with_the_same_etag() -> None:
    """After `timeout_sec` the value comes as it is: 200 and the etag that the client knows."""
    async with Emulator("gcp") as cloud:
        first = await ask(cloud, f"{V1}/preempted", GOOGLE)
        etag = first.headers["etag"]
        began = virtual_now()
        got = await ask(cloud, f"{V1}/preempted?wait_for_change=true&timeout_sec=1&last_etag={etag}", GOOGLE)
        assert since(began) == 1
    assert (got.status, got.text, got.headers["etag"]) == (200, "FALSE", etag)


@pytest.mark.parametrize("etag", ["0", "NONE"])
async def test_waiting_with_an_unknown_etag_returns_at_once(etag: str) -> None:
    """A first etag of Google's own clients is answered with the value now in force."""
    async with Emulator("gcp") as cloud:
        cloud.announce()
        got = await ask(cloud, f"{V1}/preempted?wait_for_change=true&last_etag={etag}", GOOGLE)
    assert got.text == "TRUE"


async def test_waiting_without_an_etag_misses_what_is_already_there() -> None:
    """The trap of the protocol: with no etag only the next change counts."""
    async with Emulator("gcp") as cloud:
        cloud.announce()
        got = asyncio.create_task(ask(cloud, f"{V1}/preempted?wait_for_change=true", GOOGLE))
        await until(lambda: cloud.requests)
        await ask(cloud, f"{V1}/id", GOOGLE)
        assert not got.done()
        cloud.withdraw()
        assert (await got).text == "FALSE"


async def test_waiting_on_a_whole_directory() -> None:
    """A recursive request waits for any key below it."""
    async with Emulator("gcp") as cloud:
        path = f"{V1}/?recursive=true&wait_for_change=true"
        got = asyncio.create_task(ask(cloud, path, GOOGLE))
        await until(lambda: cloud.requests)
        cloud.announce(signal="maintenance-event")
        assert json.loads((await got).body)["maintenanceEvent"] == "TERMINATE_ON_HOST_MAINTENANCE"


async def test_fault_ends_a_waiting_request() -> None:
    """A 503 can come in the middle of a wait."""
    async with Emulator("gcp") as cloud:
        got = asyncio.create_task(ask(cloud, f"{V1}/preempted?wait_for_change=true", GOOGLE))
        await until(lambda: cloud.requests)
        cloud.fault("503")
        assert (await got).status == 503
