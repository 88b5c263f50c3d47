# SPDX-License-Identifier: Apache-2.0
"""The `azure` provider when its service is slow, unwell or does not say who we are.

What documents mean is tested in `test_azure_parse`.
"""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from spotwatch.errors import Denied, Malformed, ProviderError, Unavailable
from spotwatch.model import Answer, Evidence
from tests.providers.azure_server import (
    SIGNAL,
    Fault,
    event,
    hang,
    polled,
    replying,
    reset,
    watched,
)
from tests.quiet import in_quiet_time, since, virtual_now


def silent(answer: Answer) -> bool:
    """Tell whether an answer says nothing at all."""
    return not (answer.notices or answer.answered or answer.failed)


@in_quiet_time
async def test_slow_first_request_is_pending_without_being_a_failure() -> None:
    """119 s without an answer are "not yet", block nobody, and end in a good answer."""
    async with watched() as (server, provider):
        server.events = [event()]
        enabled_at = 119.0

        async def slow(_request: web.Request) -> web.StreamResponse:
            await server.clock.sleep(enabled_at - server.clock.monotonic())
            return web.json_response({"Events": server.events})

        server.events_fault = slow
        began = virtual_now()
        assert silent(await provider.notices())
        assert since(began) <= 1
        assert await provider.identity()
        final = await polled(provider, lambda a: not silent(a))
        assert enabled_at <= since(0) <= enabled_at + 1
        assert final.answered == {SIGNAL}
        assert len(final.notices) == 1


@in_quiet_time
async def test_no_answer_for_longer_than_the_first_limit_is_loud_for_good() -> None:
    """After the limit each poll fails, and names what to check."""
    async with watched(first_timeout_seconds=20) as (server, provider):
        server.events_fault = hang
        answer = await polled(provider, lambda a: not silent(a))
        assert type(answer.failed[SIGNAL]) is Unavailable
        assert "virtual network" in answer.failed[SIGNAL].mend
        assert 20 <= since(0) <= 21
        for _ in range(3):
            again = await provider.notices()
            assert type(again.failed[SIGNAL]) is Unavailable
            assert "virtual network" in again.failed[SIGNAL].mend


@in_quiet_time
async def test_a_connection_that_dies_during_the_first_request_costs_seconds() -> None:
    """Beside the first request a fresh one is renewed, so that recovery is not hidden by a dead socket."""
    async with watched() as (server, provider):
        server.events_fault = hang
        assert silent(await provider.notices())
        server.events_fault = None
        server.events = [event()]
        began = virtual_now()
        answer = await polled(provider, lambda a: bool(a.answered))
        assert len(answer.notices) == 1
        assert since(began) <= 6


@in_quiet_time
async def test_enabling_never_holds_more_than_two_connections() -> None:
    """The oldest request and one fresh one, however long it takes."""
    async with watched() as (server, provider):
        waiting = 0
        most = 0

        async def counted(request: web.Request) -> web.StreamResponse:
            nonlocal waiting, most
            waiting += 1
            most = max(most, waiting)
            try:
                return await hang(request)
            finally:
                waiting -= 1

        server.events_fault = counted
        for _ in range(30):
            assert silent(await provider.notices())
            await provider.wait()
        assert len(server.versions_asked()) >= 5
        # One more for the moment in which the server has not yet seen that a request was given up.
        assert 2 <= most <= 3


@in_quiet_time
async def test_after_a_good_answer_a_hang_fails_at_the_short_limit() -> None:
    """Once the service has answered, silence is a failure."""
    async with watched(timeout_seconds=0.2) as (server, provider):
        await polled(provider, lambda a: bool(a.answered))
        server.events_fault = hang
        answer = await provider.notices()
        assert "no answer within 0.2 s" in str(answer.failed[SIGNAL])


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (replying(500), Unavailable),
        (replying(502, "<html>Bad Gateway</html>"), Unavailable),
        (replying(503), Unavailable),
        (replying(429), Unavailable),
        (replying(410), Unavailable),
        (replying(404), Unavailable),
        (replying(400), Malformed),
        (replying(403), Denied),
        (replying(200, "<html>sign in</html>"), Malformed),
        (replying(200, ""), Malformed),
        (replying(200, "null"), Malformed),
        (replying(200, '{"Events": "none"}'), Malformed),
        (replying(302, Location="http://127.0.0.1:9/"), Malformed),
        (reset, Unavailable),
    ],
    ids=[
        "500", "502-html", "503", "429", "410", "404", "400", "403",
        "captive", "empty", "null", "wrong-type", "redirect", "reset",
    ],
)  # fmt: skip
@pytest.mark.parametrize("has_answered", [True, False])
@in_quiet_time
async def test_each_failure_has_its_name_and_recovery_is_found_at_the_next_poll(
    fault: Fault, error: type[ProviderError], *, has_answered: bool
) -> None:
    """Nothing is raised or withdrawn by a failure, before or after the first good answer."""
    async with watched() as (server, provider):
        if has_answered:
            await polled(provider, lambda a: bool(a.answered))
        server.events_fault = fault
        for _ in range(3):
            answer = await provider.notices()
            assert type(answer.failed[SIGNAL]) is error
            assert not answer.answered
            assert not answer.notices
            await provider.wait()
        server.events_fault = None
        server.events = [event()]
        answer = await provider.notices()
        assert len(answer.notices) == 1
        assert answer.answered == {SIGNAL}


@in_quiet_time
async def test_an_outage_does_not_cost_the_preview_version() -> None:
    """Only a service that answers the older version has refused the newer one."""
    async with watched() as (server, provider):
        server.events_fault = replying(404)
        assert SIGNAL in (await provider.notices()).failed
        server.events_fault = None
        assert (await provider.notices()).answered == {SIGNAL}
        assert server.versions_asked() == ["2024-07-09", "2020-07-01", "2024-07-09"]


@in_quiet_time
async def test_retry_after_slows_to_five_seconds_at_most() -> None:
    """Only the service's own wish lengthens a pause, and not beyond five seconds."""
    async with watched() as (server, provider):
        server.events_fault = replying(503, **{"Retry-After": "3600"})
        await provider.notices()
        began = virtual_now()
        await provider.wait()
        assert since(began) == 5
        server.events_fault = replying(503)
        await provider.notices()
        began = virtual_now()
        await provider.wait()
        assert since(began) <= 1


@in_quiet_time
async def test_unknown_identity_fails_the_signal_and_hands_on_weak_evidence() -> None:
    """A lone machine's event may be ours: it flushes, never stops; the name makes it strong at once."""
    async with watched() as (server, provider):
        server.compute_fault = replying(500)
        server.events = [event()]
        for _ in range(2):
            answer = await provider.notices()
            assert type(answer.failed[SIGNAL]) is Unavailable
            assert "resource_name" in answer.failed[SIGNAL].mend
            assert not answer.answered
            assert [notice.evidence for notice in answer.notices] == [Evidence.WEAK]
        server.compute_fault = None
        answer = await provider.notices()
        assert answer.answered == {SIGNAL}
        assert [notice.evidence for notice in answer.notices] == [Evidence.STRONG]


@in_quiet_time
async def test_unknown_identity_keeps_a_shared_event_until_the_name_is_known() -> None:
    """An event seen before the name is attributed later, even if the events cannot be fetched just then."""
    async with watched() as (server, provider):
        server.compute_fault = hang
        server.events = [event(Resources=["aks-gpu-vmss_0", "aks-gpu-vmss_1"])]
        answer = await provider.notices()
        assert answer.notices == ()
        assert SIGNAL in answer.failed
        server.compute_fault = None
        server.events_fault = replying(500)
        answer = await provider.notices()
        assert [notice.evidence for notice in answer.notices] == [Evidence.STRONG]
        assert SIGNAL in answer.failed
        assert (await provider.notices()).notices == ()


@in_quiet_time
async def test_exit_leaves_no_task_while_the_first_request_waits() -> None:
    """The background request ends with the context."""
    before = asyncio.all_tasks()
    async with watched() as (server, provider):
        server.events_fault = hang
        assert silent(await provider.notices())
        assert [task for task in asyncio.all_tasks() if task.get_name() == "azure:first"]
        await provider.__aexit__(None, None, None)
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "azure:first"]
    assert asyncio.all_tasks() == before
