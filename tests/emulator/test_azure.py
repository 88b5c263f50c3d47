# SPDX-License-Identifier: Apache-2.0
"""Azure's metadata service as documented: the life of an event, versions, approval, who is meant.

Faults and stories have tests of their own.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from spotwatch.emulator import Emulator
from tests.emulator.client import AZURE, EVENTS, HandClock, ask
from tests.quiet import in_quiet_time, since, virtual_now


async def document(cloud: Emulator, version: str = "2020-07-01") -> dict[str, Any]:
    """Return the Scheduled Events document."""
    got = await ask(cloud, f"/metadata/scheduledevents?api-version={version}", AZURE)
    assert got.status == 200
    assert got.headers["content-type"] == "application/json; charset=utf-8"
    found: dict[str, Any] = json.loads(got.body)
    return found


async def test_header_is_required() -> None:
    """Without `Metadata: true` everything is 400."""
    async with Emulator("azure") as cloud:
        assert (await ask(cloud, EVENTS)).status == 400
        assert (await ask(cloud, EVENTS, {"Metadata": "false"})).status == 400
        assert (await ask(cloud, EVENTS, {"Metadata": "True"})).status == 200


@pytest.mark.parametrize("query", ["", "?api-version=", "?api-version=2031-01-01", "?api-version={latest}"])
async def test_version_must_be_known(query: str) -> None:
    """A missing or unknown version is 400."""
    async with Emulator("azure") as cloud:
        got = await ask(cloud, f"/metadata/scheduledevents{query}", AZURE)
    assert got.status == 400
    assert "api-version" in json.loads(got.body)["error"]


async def test_preview_may_be_absent() -> None:
    """Where the preview is not offered its version is 404 and the older one works."""
    async with Emulator("azure", preview=False) as cloud:
        assert (await ask(cloud, EVENTS.replace("2020-07-01", "2024-07-09"), AZURE)).status == 404
        assert (await document(cloud))["Events"] == []


async def test_life_of_a_preemption() -> None:
    """Scheduled with a time, Started without one, gone; the incarnation counts each change and no read."""
    clock = HandClock()
    async with Emulator("azure", clock=clock) as cloud:
        assert await document(cloud) == {"DocumentIncarnation": 1, "Events": []}
        cloud.announce(30)
        first = await document(cloud)
        clock.seconds = 29
        assert await document(cloud) == first
        clock.seconds = 30
        started = await document(cloud)
        clock.seconds = 89
        assert await document(cloud) == started
        clock.seconds = 90
        gone = await document(cloud)
    (event,) = first["Events"]
    assert re.fullmatch(r"[0-9A-F]{8}(-[0-9A-F]{4}){3}-[0-9A-F]{12}", event["EventId"])
    assert event == {
        "EventId": event["EventId"],
        "EventStatus": "Scheduled",
        "EventType": "Preempt",
        "ResourceType": "VirtualMachine",
        "Resources": ["spot-vmss_0"],
        "NotBefore": "Sun, 29 Nov 2026 12:00:30 GMT",
        "Description": "Spot virtual machine is being evicted.",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }
    assert started["Events"] == [{**event, "EventStatus": "Started", "NotBefore": ""}]
    assert gone["Events"] == []
    assert [d["DocumentIncarnation"] for d in (first, started, gone)] == [2, 3, 4]


async def test_several_events_and_neighbours() -> None:
    """Events stand side by side, some for others; one type is withdrawn without the rest."""
    async with Emulator("azure", compute_name="vm-a") as cloud:
        cloud.announce(900, "Freeze", resources=["vm-b", "vm-a"])
        cloud.announce(30, "Preempt", resources=["vm-b"], event_id="X")
        cloud.announce(30, "Preempt")
        events = (await document(cloud))["Events"]
        cloud.withdraw("Preempt")
        left = (await document(cloud))["Events"]
        cloud.withdraw()
        none = (await document(cloud))["Events"]
    assert [e["Resources"] for e in events] == [["vm-b", "vm-a"], ["vm-b"], ["vm-a"]]
    assert events[1]["EventId"] == "X"
    assert [e["EventType"] for e in left] == ["Freeze"]
    assert none == []


async def test_a_version_shows_what_it_knows() -> None:
    """Types and keys appear with the version that brought them."""
    async with Emulator("azure") as cloud:
        for kind in ("Preempt", "Terminate", "SpotRebalanceRecommendation"):
            cloud.announce(300, kind)
        shown = {
            version: [e["EventType"] for e in (await document(cloud, version))["Events"]]
            for version in ("2017-08-01", "2017-11-01", "2019-01-01", "2024-07-09")
        }
        keys = set((await document(cloud, "2019-04-01"))["Events"][0])
        incarnations = {(await document(cloud, v))["DocumentIncarnation"] for v in shown}
    assert shown == {
        "2017-08-01": [],
        "2017-11-01": ["Preempt"],
        "2019-01-01": ["Preempt", "Terminate"],
        "2024-07-09": ["Preempt", "Terminate", "SpotRebalanceRecommendation"],
    }
    assert "Description" in keys
    assert not {"EventSource", "DurationInSeconds"} & keys
    assert incarnations == {2}


async def test_details_as_given() -> None:
    """Odd times, states and durations go out as they are."""
    async with Emulator("azure") as cloud:
        cloud.announce(
            signal="Reboot", status="Started", not_before="Mon, 9 Mar 2026 1:00:00 GMT", duration_seconds=0
        )
        (event,) = (await document(cloud))["Events"]
    assert (event["EventStatus"], event["NotBefore"], event["DurationInSeconds"]) == (
        "Started",
        "Mon, 9 Mar 2026 1:00:00 GMT",
        0,
    )


async def test_approval_starts_the_event() -> None:
    """StartRequests is 200, also when repeated and in lower case, and is kept."""
    async with Emulator("azure") as cloud:
        cloud.announce(900, "Redeploy", event_id="ABC-1")
        body = json.dumps({"StartRequests": [{"EventId": "abc-1"}]}).encode()
        for _ in range(2):
            assert (await ask(cloud, EVENTS, AZURE, method="POST", data=body)).status == 200
        (event,) = (await document(cloud))["Events"]
        assert cloud.cloud.approved == ["abc-1", "abc-1"]  # type: ignore[attr-defined] # Azure's own field
    assert (event["EventStatus"], event["NotBefore"]) == ("Started", "")


async def test_approving_advice_changes_nothing() -> None:
    """A rebalance recommendation stays Scheduled when it is approved."""
    async with Emulator("azure") as cloud:
        cloud.announce(900, "SpotRebalanceRecommendation", event_id="A")
        body = b'{"StartRequests":[{"EventId":"A"}]}'
        assert (await ask(cloud, EVENTS, AZURE, method="POST", data=body)).status == 200
        (event,) = (await document(cloud, "2024-07-09"))["Events"]
    assert event["EventStatus"] == "Scheduled"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"StartRequests":[]}', b'{"StartRequests":[{"EventId":"no"}]}', b"7"]
)
async def test_malformed_approval(body: bytes) -> None:
    """Anything else is 400 and approves nothing."""
    async with Emulator("azure") as cloud:
        cloud.announce(900, "Redeploy", event_id="A")
        assert (await ask(cloud, EVENTS, AZURE, method="POST", data=body)).status == 400
        assert (await document(cloud))["Events"][0]["EventStatus"] == "Scheduled"


@in_quiet_time
async def test_first_call_is_slow() -> None:
    """The first request for events enables the service and takes its time; the next does not."""
    async with Emulator("azure", first_call_seconds=0.6) as cloud:
        assert (await ask(cloud, "/metadata/instance/compute?api-version=2021-02-01", AZURE)).status == 200
        began = virtual_now()
        await document(cloud)
        assert since(began) == 0.6
        await document(cloud)
        assert since(began) == 0.6


async def test_instance_names_the_machine() -> None:
    """The name for `Resources` is compute.name, not the computer's."""
    async with Emulator("azure") as cloud:
        path = "/metadata/instance/compute"
        compute = json.loads((await ask(cloud, f"{path}?api-version=2021-02-01", AZURE)).body)
        name = await ask(cloud, f"{path}/name?api-version=2021-02-01&format=text", AZURE)
        whole = json.loads((await ask(cloud, "/metadata/instance?api-version=2021-02-01", AZURE)).body)
        assert (await ask(cloud, f"{path}?api-version=1999-01-01", AZURE)).status == 400
        assert (await ask(cloud, "/metadata/nothing", AZURE)).status == 404
        assert cloud.identity == compute["vmId"]
    assert (compute["name"], compute["osProfile"]["computerName"]) == ("spot-vmss_0", "spot-vmss000000")
    assert compute["priority"] == "Spot"
    assert name.text == "spot-vmss_0"
    assert whole["compute"] == compute
