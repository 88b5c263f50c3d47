# SPDX-License-Identifier: Apache-2.0
"""The `gcp` provider on a healthy server: hanging GETs, withdrawal, identity, detection, settings.

What values mean is tested in `test_gcp_parse`, what failures do in `test_gcp_faults`.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from spotwatch.errors import Malformed
from spotwatch.providers import _metadata
from spotwatch.providers.gcp import Config, endpoint_of
from tests.providers.gcp_server import ALL, half_open, hanging, polled, raised, replying, watched
from tests.quiet import in_quiet_time, since, virtual_now


@in_quiet_time
async def test_first_poll_is_plain_and_finds_a_flag_that_is_already_up() -> None:
    """A daemon that starts after the preemption sees it in its first poll, without a hanging GET."""
    async with watched() as (server, provider):
        server.values["preempted"] = "TRUE\n"
        answer = await provider.notices()
        assert answer.answered == ALL
        assert raised(answer) == {"preempted"}
        assert not server.hung("preempted")
        assert answer.server_at is not None
        assert answer.server_at.utcoffset() == timedelta(0)


@in_quiet_time
async def test_hanging_get_carries_etag_and_limit_and_returns_at_once_on_change() -> None:
    """Once settled, each key hangs with its own etag; a change is told far sooner than the wait."""
    async with watched() as (server, provider):
        await provider.notices()
        await hanging(server, provider)
        query = server.hung("upcoming-maintenance")[0]
        assert query == {
            "alt": "json",
            "wait_for_change": "true",
            "last_etag": server.etag("upcoming-maintenance"),
            "timeout_sec": "60",
        }
        await server.set("preempted", "TRUE")
        began = virtual_now()
        answer = await polled(provider, lambda a: "preempted" in a.answered)
        assert raised(answer) == {"preempted"}
        assert since(began) < 1


@in_quiet_time
async def test_pending_hanging_gets_survive_a_cancelled_wait() -> None:
    """Cancelling wait() neither ends nor repeats the hanging GETs."""
    async with watched() as (server, provider):
        await provider.notices()
        await hanging(server, provider)
        before = len(server.asked)
        for _ in range(5):
            waiting = asyncio.create_task(provider.wait())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        assert len(server.asked) == before
        assert server.hanging == len(ALL)


@in_quiet_time
async def test_same_etag_is_a_time_out_and_the_next_get_hangs_again() -> None:
    """A hanging GET that timed out answers well, raises nothing, and is followed by another."""
    async with watched(wait_seconds=5) as (server, provider):
        await provider.notices()
        await polled(provider, lambda _: bool(server.hung("preempted")))
        plain = server.plain("preempted")
        answer = await polled(provider, lambda a: "preempted" in a.answered)
        assert not answer.notices
        assert not answer.failed
        await polled(provider, lambda _: len(server.hung("preempted")) >= 3)
        assert server.plain("preempted") == plain


@in_quiet_time
async def test_forced_poll_asks_every_key_plainly() -> None:
    """notices() without a wait() asks all keys now and leaves the hanging GETs alone."""
    async with watched() as (server, provider):
        await provider.notices()
        await hanging(server, provider)
        before = server.plain("preempted")
        answer = await provider.notices()
        assert answer.answered == ALL
        assert server.plain("preempted") == before + 1
        assert server.hanging == len(ALL)


@in_quiet_time
async def test_deadline_does_not_slide_and_ids_are_stable() -> None:
    """Every poll of one preemption gives the same notice, deadline included, also over an outage."""
    async with watched(notice_seconds=120) as (server, provider):
        server.values["preempted"] = "TRUE"
        first = (await provider.notices()).notices[0]
        assert first.deadline == first.seen_at + timedelta(seconds=150)
        server.faults["preempted"] = replying(200, "perhaps", **server.headers)
        await polled(provider, lambda a: isinstance(a.failed.get("preempted"), Malformed))
        server.faults.clear()
        again = await polled(provider, lambda a: "preempted" in a.answered)
        assert again.notices == (first,)


@in_quiet_time
async def test_withdrawal_gets_three_good_answers_within_seconds() -> None:
    """After TRUE went back to FALSE the next answers come each second, not each hanging GET."""
    async with watched() as (server, provider):
        server.values["preempted"] = "TRUE"
        await provider.notices()
        await hanging(server, provider)
        await server.set("preempted", "FALSE")
        times: list[float] = []
        while len(times) < 4 or times[-1] - times[0] < 3:
            answer = await polled(provider, lambda a: "preempted" in a.answered)
            assert not answer.notices
            times.append(server.clock.monotonic())
        assert all(round(later - earlier, 6) <= 1 for earlier, later in pairwise(times))


@in_quiet_time
async def test_change_of_one_key_leaves_the_other_notice_alone() -> None:
    """maintenance-event going back to NONE never speaks for `preempted`."""
    async with watched() as (server, provider):
        server.values |= {"preempted": "TRUE", "maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE"}
        assert raised(await provider.notices()) == {"preempted", "maintenance-event"}
        await hanging(server, provider)
        await server.set("maintenance-event", "NONE")
        answer = await polled(provider, lambda a: "maintenance-event" in a.answered)
        assert raised(answer) == {"preempted"} & answer.answered
        assert raised(await provider.notices()) == {"preempted"}


@in_quiet_time
async def test_identity_is_the_instance_id_and_asked_once() -> None:
    """The numeric id is returned without its newline and kept."""
    async with watched() as (server, provider):
        assert await provider.identity() == "4520031799277581759"
        assert await provider.identity() == "4520031799277581759"
        assert [key for key, _ in server.asked] == ["id"]


@pytest.mark.parametrize("text", ["", "metadata.google.internal", "١٢٣"])
@in_quiet_time
async def test_identity_refuses_what_is_no_number(text: str) -> None:
    """A page, an empty body or foreign digits never become an identity."""
    async with watched() as (server, provider):
        server.faults["id"] = replying(200, text, **server.headers)
        with pytest.raises(Malformed):
            await provider.identity()


@in_quiet_time
async def test_detect_believes_dmi_then_the_header(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """DMI decides without a request; else one answer with Google's header does; a captive page does not."""
    monkeypatch.setattr(_metadata, "_DMI", tmp_path)
    async with watched() as (server, provider):
        assert await provider.detect()
        server.headers = {}
        assert not await provider.detect()
        before = len(server.asked)
        (tmp_path / "product_name").write_text("Google Compute Engine\n")
        assert await provider.detect()
        assert len(server.asked) == before


@in_quiet_time
async def test_detect_gives_up_in_time_where_nothing_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """A server that hangs means "not here" within two seconds, and nothing is raised."""
    monkeypatch.setattr(_metadata, "_DMI", tmp_path)
    async with watched() as (server, provider):
        server.faults["id"] = half_open
        async with asyncio.timeout(2.0):
            assert not await provider.detect()


@in_quiet_time
async def test_exit_leaves_no_task_and_no_connection() -> None:
    """Hanging GETs end with the context."""
    before = asyncio.all_tasks()
    async with watched() as (server, provider):
        await provider.notices()
        await hanging(server, provider)
        await provider.__aexit__(None, None, None)
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("gcp:")]
        async with asyncio.timeout(1.0):
            while server.hanging:  # noqa: ASYNC110 - the server learns of the cut in its own time
                await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == before


@in_quiet_time
async def test_proxy_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy in the environment never sees a request."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with watched() as (_, provider):
        assert (await provider.notices()).answered == ALL


@pytest.mark.parametrize(
    ("endpoint", "variable", "wanted"),
    [
        ("", "", "http://169.254.169.254"),
        ("", "10.0.0.1", "http://10.0.0.1"),
        ("", "localhost:8080", "http://localhost:8080"),
        ("", "http://localhost:8080/", "http://localhost:8080"),
        ("http://10.0.0.2/", "localhost:8080", "http://10.0.0.2"),
    ],
)
def test_endpoint_is_the_setting_then_the_variable_then_link_local(
    endpoint: str, variable: str, wanted: str
) -> None:
    """GCE_METADATA_HOST may be a host or host:port; no name has to be resolved without it."""
    assert endpoint_of(Config(endpoint=endpoint), {"GCE_METADATA_HOST": variable}) == wanted


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"notice_seconds": 60}, "use 0, or 120"),
        ({"wait_seconds": 0}, "use 1 to 600"),
        ({"timeout_seconds": 0}, "above 0 to 30"),
        ({"maintenance_notice_seconds": -1}, "use 0 to 86400"),
        ({"maintenance_notice_seconds": float("nan")}, "use 0 to 86400"),
        ({"endpoint": "metadata.google.internal"}, "http://HOST"),
    ],
)
def test_bad_settings_say_what_to_do(settings: dict[str, Any], hint: str) -> None:
    """A value that cannot work is refused with the values that can."""
    with pytest.raises(ValueError, match=hint):
        Config(**settings)


@in_quiet_time
async def test_interval_and_signals() -> None:
    """The frame learns the signals and the longest wait."""
    async with watched(wait_seconds=30) as (_, provider):
        assert provider.interval_seconds == 30
        assert set(provider.signals) == ALL
