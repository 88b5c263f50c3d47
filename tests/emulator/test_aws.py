# SPDX-License-Identifier: Apache-2.0
"""EC2's metadata service as documented, field by field.

Faults and stories have tests of their own.
"""

from __future__ import annotations

import json
import re

import pytest

from spotwatch.emulator import Emulator
from spotwatch.errors import ConfigError
from tests.emulator.client import TOKEN, TTL, HandClock, ask, token

META = "/latest/meta-data"


@pytest.mark.parametrize("path", [f"{META}/spot/instance-action", f"{META}/spot/termination-time"])
async def test_no_notice_is_404_with_an_xhtml_page(path: str) -> None:
    """Without a notice the spot pages are 404, in EC2's own form."""
    async with Emulator("aws") as cloud:
        got = await ask(cloud, path, await token(cloud))
    assert got.status == 404
    assert got.headers["server"] == "EC2ws"
    assert got.headers["connection"].lower() == "close"
    assert got.text.startswith('<?xml version="1.0"')
    assert "404 - Not Found" in got.text


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
async def test_instance_action_and_termination_time(action: str) -> None:
    """The three actions differ: hibernate is at once, and only terminate has the legacy page."""
    async with Emulator("aws", clock=HandClock()) as cloud:
        deadline = cloud.announce(120, action=action)
        headers = await token(cloud)
        page = await ask(cloud, f"{META}/spot/instance-action", headers)
        legacy = await ask(cloud, f"{META}/spot/termination-time", headers)
    when = "2026-11-29T12:00:00Z" if action == "hibernate" else "2026-11-29T12:02:00Z"
    assert page.text == f'{{"action": "{action}", "time": "{when}"}}'
    assert deadline.isoformat() == "2026-11-29T12:02:00+00:00"
    assert (legacy.status, legacy.text) == (200, when) if action == "terminate" else legacy.status == 404


async def test_rebalance_tells_when_it_was_emitted() -> None:
    """`noticeTime` is no deadline but the moment of the recommendation."""
    async with Emulator("aws", clock=HandClock()) as cloud:
        cloud.announce(120, "rebalance")
        headers = await token(cloud)
        page = await ask(cloud, f"{META}/events/recommendations/rebalance", headers)
        other = await ask(cloud, f"{META}/spot/instance-action", headers)
    assert page.text == '{"noticeTime": "2026-11-29T12:00:00Z"}'
    assert other.status == 404


async def test_scheduled_events_and_their_history() -> None:
    """Events are listed with an unpadded day, and a withdrawn one moves to the history."""
    clock = HandClock()
    clock.seconds = 3 * 86400
    async with Emulator("aws", clock=clock) as cloud:
        headers = await token(cloud)
        scheduled, history = f"{META}/events/maintenance/scheduled", f"{META}/events/maintenance/history"
        assert (await ask(cloud, scheduled, headers)).text == "[]"
        assert (await ask(cloud, history, headers)).text == "[]"
        cloud.announce(3600, "scheduled-events", code="instance-stop", description="power", event_id="e-1")
        cloud.announce(60, "scheduled-events", code="system-reboot", not_after_seconds=None)
        listed = json.loads((await ask(cloud, scheduled, headers)).body)
        cloud.withdraw("scheduled-events")
        assert (await ask(cloud, scheduled, headers)).text == "[]"
        past = json.loads((await ask(cloud, history, headers)).body)
    assert listed[0] == {
        "NotBefore": "2 Dec 2026 13:00:00 GMT",
        "NotAfter": "2 Dec 2026 15:00:00 GMT",
        "Code": "instance-stop",
        "Description": "power",
        "EventId": "e-1",
        "State": "active",
    }
    assert "NotAfter" not in listed[1]
    assert re.fullmatch(r"instance-event-[0-9a-f]{17}", listed[1]["EventId"])
    assert past[0]["EventId"] == "e-1"
    assert (past[0]["State"], past[0]["Description"]) == ("canceled", "[Canceled] power")
    assert len(past) == 2


async def test_target_lifecycle_state() -> None:
    """The page is 404 outside a group, then Terminated, then InService again."""
    path = f"{META}/autoscaling/target-lifecycle-state"
    async with Emulator("aws") as cloud:
        headers = await token(cloud)
        assert (await ask(cloud, path, headers)).status == 404
        cloud.announce(signal="asg")
        assert (await ask(cloud, path, headers)).text == "Terminated"
        cloud.announce(signal="asg", state="Warmed:Stopped")
        assert (await ask(cloud, path, headers)).text == "Warmed:Stopped"
        cloud.withdraw("asg")
        assert (await ask(cloud, path, headers)).text == "InService"


async def test_legacy_value_that_is_no_time() -> None:
    """A termination-time that is no time can be played, with no instance-action beside it."""
    async with Emulator("aws") as cloud:
        cloud.announce(signal="termination-time", body="none yet")
        headers = await token(cloud)
        assert (await ask(cloud, f"{META}/spot/termination-time", headers)).text == "none yet"
        assert (await ask(cloud, f"{META}/spot/instance-action", headers)).status == 404


async def test_identity() -> None:
    """The machine says who it is, in text and as a document."""
    async with Emulator("aws", instance_id="i-1", life_cycle="on-demand") as cloud:
        headers = await token(cloud)
        assert (await ask(cloud, f"{META}/instance-id", headers)).text == "i-1"
        assert (await ask(cloud, f"{META}/instance-life-cycle", headers)).text == "on-demand"
        assert "placement/" in (await ask(cloud, f"{META}/", headers)).text.split("\n")
        document = json.loads((await ask(cloud, "/latest/dynamic/instance-identity/document", headers)).body)
        assert cloud.identity == "i-1"
    assert document["instanceId"] == "i-1"
    assert {"accountId", "availabilityZone", "imageId", "instanceType", "region", "version"} <= set(document)


@pytest.mark.parametrize("ttl", [None, "", "0", "21601", "-1", "abc", "1.5", "9" * 50, "+5"])
async def test_token_needs_a_good_ttl(ttl: str | None) -> None:
    """A PUT without a TTL from 1 to 21600 is 400."""
    async with Emulator("aws") as cloud:
        headers = {} if ttl is None else {TTL: ttl}
        assert (await ask(cloud, "/latest/api/token", headers, method="PUT")).status == 400


async def test_token_elsewhere_is_forbidden() -> None:
    """Only /latest hands out tokens; a GET there is no way to one."""
    async with Emulator("aws") as cloud:
        assert (await ask(cloud, "/2021-01-03/api/token", {TTL: "5"}, method="PUT")).status == 403
        assert (await ask(cloud, "/latest/api/token")).status == 405


@pytest.mark.parametrize("ttl", [1, 21600])
async def test_token_lives_for_its_ttl(ttl: int) -> None:
    """A token is good until its own TTL is over, and each answer says how long that is."""
    clock = HandClock()
    async with Emulator("aws", clock=clock) as cloud:
        put = await ask(cloud, "/latest/api/token", {TTL: str(ttl)}, method="PUT")
        assert put.headers[TTL.lower()] == str(ttl)
        headers = {TOKEN: put.text}
        clock.seconds = ttl - 0.5
        got = await ask(cloud, f"{META}/instance-id", headers)
        assert (got.status, got.headers[TTL.lower()]) == (200, "0")
        clock.seconds = ttl
        assert (await ask(cloud, f"{META}/instance-id", headers)).status == 401


async def test_older_tokens_stay_valid() -> None:
    """A new token ends no older one."""
    async with Emulator("aws") as cloud:
        first, second = await token(cloud), await token(cloud)
        assert first != second
        for headers in (first, second, first):
            assert (await ask(cloud, f"{META}/instance-id", headers)).status == 200


async def test_without_or_with_an_unknown_token() -> None:
    """No token is 401 unless IMDSv1 is allowed; an unknown one always is."""
    async with Emulator("aws") as cloud:
        assert (await ask(cloud, f"{META}/instance-id")).status == 401
    async with Emulator("aws", imdsv1=True) as cloud:
        assert (await ask(cloud, f"{META}/instance-id")).status == 200
        assert (await ask(cloud, f"{META}/instance-id", {TOKEN: "stale"})).status == 401


async def test_unknown_signal_and_detail_are_named() -> None:
    """A mistake in a test is told at once, with what there is."""
    async with Emulator("aws") as cloud:
        with pytest.raises(ConfigError, match=r"unknown signal 'preempted' of aws; have instance-action"):
            cloud.announce(signal="preempted")
        with pytest.raises(ConfigError, match=r"unknown detail 'acton' .* have action, body"):
            cloud.announce(acton="stop")
        with pytest.raises(ConfigError, match="unknown signal"):
            cloud.withdraw("preempted")
