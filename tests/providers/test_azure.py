# SPDX-License-Identifier: Apache-2.0
"""The `azure` provider on a healthy service: events, identity, versions, approval, detection, settings.

What documents mean is tested in `test_azure_parse`, what failures do in `test_azure_faults`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from spotwatch.errors import Denied, Malformed, Unavailable
from spotwatch.model import Kind, Notice
from spotwatch.providers import Confirmer, Identified, _metadata
from spotwatch.providers.azure import Azure, Config
from tests.providers.azure_server import SIGNAL, event, hang, payload, polled, replying, watched
from tests.quiet import in_quiet_time, since, virtual_now


@in_quiet_time
async def test_first_poll_finds_an_event_and_attributes_it() -> None:
    """Where the service is enabled already, one poll is enough; the scale set's name matches."""
    async with watched() as (server, provider):
        server.events = payload("freeze-then-preempt.json")["Events"]
        answer = await provider.notices()
        assert [notice.kind for notice in answer.notices] == [Kind.MAINTENANCE, Kind.RECLAIM]
        assert answer.answered == {SIGNAL}
        assert answer.server_at is not None


@in_quiet_time
async def test_neighbours_event_is_a_good_answer_without_notices() -> None:
    """Events are broadcast; one for others says that nothing is planned for us."""
    async with watched() as (server, provider):
        server.events = [event(Resources=["aks-gpu-vmss_7", "aks-gpu-vmss_1"])]
        answer = await provider.notices()
        assert answer.notices == ()
        assert answer.answered == {SIGNAL}


@in_quiet_time
async def test_same_document_twice_gives_the_same_id_and_deadline() -> None:
    """A poll changes nothing about an event."""
    async with watched() as (server, provider):
        server.events = [event()]
        first, second = await provider.notices(), await provider.notices()
        assert [(n.id, n.deadline) for n in first.notices] == [(n.id, n.deadline) for n in second.notices]
        assert len(first.notices) == 1


@in_quiet_time
async def test_started_under_a_new_id_stays_one_notice_then_vanishes() -> None:
    """Scheduled, Started with another EventId, gone: one id, then a good answer without it."""
    async with watched() as (server, provider):
        server.events = [event()]
        scheduled = (await provider.notices()).notices[0]
        server.events = payload("preempt-started-new-id.json")["Events"]
        started = (await provider.notices()).notices[0]
        assert started.id == scheduled.id
        assert started.has_started
        server.events = []
        answer = await provider.notices()
        assert answer.notices == ()
        assert answer.answered == {SIGNAL}


@in_quiet_time
async def test_an_unreadable_item_between_two_polls_does_not_change_the_id() -> None:
    """An event that cannot be read once is still the same one afterwards."""
    async with watched() as (server, provider):
        server.events = [event()]
        first = (await provider.notices()).notices[0].id
        started = payload("preempt-started-new-id.json")["Events"][0]
        server.events = [started]
        await provider.notices()
        server.events = [started | {"EventType": 7}]
        broken = await provider.notices()
        assert type(broken.failed[SIGNAL]) is Malformed
        assert not broken.answered
        server.events = [started]
        assert (await provider.notices()).notices[0].id == first


@in_quiet_time
async def test_polls_come_every_interval() -> None:
    """Ten polls a second apart take ten seconds, less the jitter that only shortens."""
    async with watched() as (_, provider):
        await provider.notices()
        began = virtual_now()
        for _ in range(10):
            await provider.wait()
            await provider.notices()
        assert 9 <= since(began) <= 10


@in_quiet_time
async def test_resource_name_setting_replaces_the_lookup() -> None:
    """With the name configured, the instance metadata is not asked for it."""
    async with watched(resource_name="Other_3 ") as (server, provider):
        server.compute_fault = replying(500)
        server.events = [event(Resources=["other_3"])]
        assert len((await provider.notices()).notices) == 1
        assert not [path for _, path, _ in server.asked if path.endswith("compute")]


@in_quiet_time
async def test_identity_is_vm_id_and_asked_once() -> None:
    """The name for `Resources` and the identity come from one request."""
    async with watched() as (server, provider):
        assert await provider.identity() == "02aab8a4-74ef-476e-8182-f6d2ba4166a6"
        await provider.notices()
        await provider.identity()
        assert len([path for _, path, _ in server.asked if path.endswith("compute")]) == 1


@pytest.mark.parametrize("compute", [{}, [], {"name": "a"}, {"vmId": "b"}, {"name": "", "vmId": "b"}, 7])
@in_quiet_time
async def test_identity_refuses_half_a_machine(compute: Any) -> None:
    """A document without name and vmId identifies nobody."""
    async with watched() as (server, provider):
        server.compute = compute
        with pytest.raises(Malformed):
            await provider.identity()


@pytest.mark.parametrize("status", [400, 404])
@in_quiet_time
async def test_unknown_preview_falls_back_in_the_same_poll_and_is_tried_again_each_hour(status: int) -> None:
    """The rebalance recommendation's version costs no poll where it is unknown, and is not forgotten."""
    async with watched() as (server, provider):
        server.versions.remove("2024-07-09")
        server.unknown_version_status = status
        server.events = [event()]
        assert len((await provider.notices()).notices) == 1
        await provider.notices()
        assert server.versions_asked() == ["2024-07-09", "2020-07-01", "2020-07-01"]
        server.versions.add("2024-07-09")
        await server.clock.sleep(3600)
        server.events = [event(EventType="SpotRebalanceRecommendation")]
        assert [n.kind for n in (await provider.notices()).notices] == [Kind.AT_RISK]
        assert server.versions_asked()[-1] == "2024-07-09"


@in_quiet_time
async def test_fixed_version_is_never_replaced() -> None:
    """A version that the user set and the cloud does not know is a failure with a mend."""
    async with watched(api_version="2019-08-01") as (server, provider):
        answer = await provider.notices()
        assert type(answer.failed[SIGNAL]) is Unavailable
        assert set(server.versions_asked()) == {"2019-08-01"}
        server.events_fault = replying(400)
        answer = await provider.notices()
        assert type(answer.failed[SIGNAL]) is Malformed
        assert "api_version" in answer.failed[SIGNAL].mend


async def approvable(provider: Azure) -> Notice:
    """Return the notice of one poll."""
    (notice,) = (await provider.notices()).notices
    return notice


@in_quiet_time
async def test_confirm_posts_the_event_id_exactly_as_spelled() -> None:
    """The cloud gets its own spelling back, in the documented body."""
    async with watched() as (server, provider):
        server.events = [event(EventType="Reboot", EventId="AbCd-01")]
        await provider.confirm(await approvable(provider))
        assert server.approved == [{"StartRequests": [{"EventId": "AbCd-01"}]}]
        assert server.asked[-1] == ("POST", "/metadata/scheduledevents", "2024-07-09")


@in_quiet_time
async def test_confirm_refuses_what_is_not_ours_alone() -> None:
    """Nothing is sent for a shared event, a drill, another source's notice, or one without an id."""
    async with watched() as (server, provider):
        server.events = [event(EventType="Reboot")]
        alone = await approvable(provider)
        for changes in ({"drill": True}, {"provider": "file"}, {"sole_resource": False}):
            with pytest.raises(Denied):
                await provider.confirm(Notice(**(_fields(alone) | changes)))
        server.events = [event(EventType="Reboot", Resources=["aks-gpu-vmss_0", "aks-gpu-vmss_1"])]
        await approvable(provider)
        with pytest.raises(Denied, match="other machines"):
            await provider.confirm(alone)
        server.events = [event(EventType="Reboot", EventId="")]
        with pytest.raises(Denied, match="EventId"):
            await provider.confirm(await approvable(provider))
        server.events = []
        await provider.notices()
        with pytest.raises(Unavailable, match="does not list"):
            await provider.confirm(alone)
        assert server.approved == []


def _fields(notice: Notice) -> dict[str, Any]:
    return {name: getattr(notice, name) for name in Notice.__dataclass_fields__}


@in_quiet_time
async def test_confirm_tells_when_the_cloud_refuses() -> None:
    """An approval that did not arrive is an error, never a silent success."""
    async with watched() as (server, provider):
        server.events = [event(EventType="Reboot")]
        notice = await approvable(provider)
        server.events_fault = replying(500)
        with pytest.raises(Unavailable):
            await provider.confirm(notice)


@in_quiet_time
async def test_detect_believes_the_asset_tag_then_one_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The tag decides without a request; else a document with a vmId does; another vendor's does not."""
    monkeypatch.setattr(_metadata, "_DMI", tmp_path)
    async with watched() as (server, provider):
        (tmp_path / "sys_vendor").write_text("Microsoft Corporation\n")
        assert await provider.detect()
        server.compute = {"droplet_id": 1}
        assert not await provider.detect()
        server.compute_fault = hang
        async with asyncio.timeout(2.0):
            assert not await provider.detect()
        before = len(server.asked)
        (tmp_path / "chassis_asset_tag").write_text("7783-7084-3265-9085-8269-3286-77\n")
        assert await provider.detect()
        assert len(server.asked) == before


@in_quiet_time
async def test_proxy_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy in the environment never sees a request."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with watched() as (_, provider):
        assert (await polled(provider, lambda a: bool(a.answered))).answered == {SIGNAL}


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"interval_seconds": 0}, "use 0.2 to 60"),
        ({"timeout_seconds": 0}, "above 0 to 30"),
        ({"first_timeout_seconds": 1}, "timeout_seconds to 600"),
        ({"first_timeout_seconds": float("nan")}, "timeout_seconds to 600"),
        ({"api_version": "latest"}, "YYYY-MM-DD"),
        ({"endpoint": "169.254.169.254"}, "http://HOST"),
    ],
)
def test_bad_settings_say_what_to_do(settings: dict[str, Any], hint: str) -> None:
    """A value that cannot work is refused with the values that can."""
    with pytest.raises(ValueError, match=hint):
        Config(**settings)


@in_quiet_time
async def test_protocols_and_frame() -> None:
    """The frame sees a provider that can name the machine and approve events."""
    async with watched(interval_seconds=2) as (_, provider):
        assert isinstance(provider, Identified)
        assert isinstance(provider, Confirmer)
        assert provider.signals == (SIGNAL,)
        assert provider.interval_seconds == 2
