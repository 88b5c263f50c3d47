# SPDX-License-Identifier: Apache-2.0
"""The `gcp` provider when its server is unwell: each key fails on its own, and no interval is lost.

What values mean is tested in `test_gcp_parse`.
"""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from spotwatch.errors import Denied, Malformed, ProviderError, Unavailable
from spotwatch.providers import _gcp_key
from tests.providers.gcp_server import (
    ALL,
    Fault,
    half_open,
    hanging,
    polled,
    raised,
    replying,
    reset,
    watched,
)
from tests.quiet import in_quiet_time, since, virtual_now

SHORTEST = 0.75
"""Jitter leaves this much of a pause at least."""


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (replying(503), Unavailable),
        (replying(429), Unavailable),
        (replying(500), Unavailable),
        (replying(403), Denied),
        (replying(200, "<html>", **{"Content-Type": "text/html"}), Malformed),
        (replying(302, Location="http://127.0.0.1:9/"), Malformed),
        (replying(418), Malformed),
        (reset, Unavailable),
    ],
    ids=["503", "429", "500", "403", "captive", "redirect", "418", "reset"],
)
@in_quiet_time
async def test_failure_of_a_key_is_its_own_and_recovery_is_found_within_a_second(
    fault: Fault, error: type[ProviderError]
) -> None:
    """A fault names its signal, the others go on, and plain GETs each second find the notice afterwards."""
    async with watched() as (server, provider):
        await provider.notices()
        await hanging(server, provider)
        server.faults["preempted"] = fault
        await server.set("preempted", "FALSE ")
        failing = await polled(provider, lambda a: "preempted" in a.failed)
        assert type(failing.failed["preempted"]) is error
        others = await provider.notices()
        assert others.answered == ALL - {"preempted"}
        server.faults.clear()
        server.values["preempted"] = "TRUE"
        began = virtual_now()
        answer = await polled(provider, lambda a: "preempted" in a.answered)
        assert raised(answer) == {"preempted"}
        assert since(began) <= 1


@in_quiet_time
async def test_503_in_the_middle_of_a_hanging_get_is_counted_and_followed_by_a_plain_get() -> None:
    """A hanging GET that ends in 503 is a failure, and the value is asked for plainly at once."""
    async with watched(wait_seconds=5) as (server, provider):

        async def breaking(request: web.Request) -> web.StreamResponse:
            if "wait_for_change" not in request.query:
                return web.Response(text="FALSE", headers=server.headers | {"ETag": "e"})
            await asyncio.sleep(0.05)
            return web.Response(status=503)

        server.faults["preempted"] = breaking
        await provider.notices()
        answer = await polled(provider, lambda a: "preempted" in a.failed)
        assert type(answer.failed["preempted"]) is Unavailable
        plain = server.plain("preempted")
        await polled(provider, lambda a: "preempted" in a.answered)
        assert server.plain("preempted") == plain + 1


@in_quiet_time
async def test_retry_after_slows_to_five_seconds_at_most() -> None:
    """A server that asks for an hour is asked again after five seconds, jitter only shortening."""
    async with watched() as (server, provider):
        server.faults["preempted"] = replying(429, **{"Retry-After": "3600"})
        await provider.notices()
        began = virtual_now()
        await polled(provider, lambda a: "preempted" in a.failed)
        assert SHORTEST * 5 <= since(began) <= 5


@in_quiet_time
async def test_half_open_hanging_get_is_outrun_by_a_plain_one() -> None:
    """A notice behind a dead socket is found by the look each ten seconds, and the dead GET is given up."""
    async with watched() as (server, provider):

        async def deaf(request: web.Request) -> web.StreamResponse:
            if "wait_for_change" in request.query:
                return await half_open(request)
            return web.Response(text=server.values["preempted"], headers=server.headers | {"ETag": "e"})

        server.faults["preempted"] = deaf
        await provider.notices()
        await polled(provider, lambda _: bool(server.hung("preempted")))
        server.values["preempted"] = "TRUE"
        began = virtual_now()
        answer = await polled(provider, lambda a: "preempted" in a.answered and bool(a.notices))
        assert raised(answer) == {"preempted"}
        assert since(began) <= 10
        began = virtual_now()
        await polled(provider, lambda a: "preempted" in a.answered)
        assert since(began) <= 1


@in_quiet_time
async def test_plain_gets_that_fail_end_the_hanging_one_and_go_on_each_second() -> None:
    """A hanging GET is not trusted while its server refuses plain ones; recovery is found within seconds."""
    async with watched() as (server, provider):

        async def refusing(request: web.Request) -> web.StreamResponse:
            if "wait_for_change" in request.query:
                return await half_open(request)
            return web.Response(status=503)

        await provider.notices()
        server.faults["maintenance-event"] = half_open
        await polled(provider, lambda _: bool(server.hung("preempted")))
        server.faults["preempted"] = refusing
        await polled(provider, lambda a: "preempted" in a.failed)
        server.faults.clear()
        server.values["preempted"] = "TRUE"
        began = virtual_now()
        answer = await polled(provider, lambda a: "preempted" in a.answered)
        assert raised(answer) == {"preempted"}
        assert since(began) <= 1


@in_quiet_time
async def test_half_open_hanging_get_ends_at_the_clients_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client waits a little longer than the server may, then counts the GET as failed."""
    monkeypatch.setattr(_gcp_key, "LOOK_SECONDS", 3600.0)
    async with watched(wait_seconds=60) as (server, provider):

        async def deaf(request: web.Request) -> web.StreamResponse:
            if "wait_for_change" in request.query:
                return await half_open(request)
            return web.Response(text="FALSE", headers=server.headers | {"ETag": "e"})

        server.faults["preempted"] = deaf
        await provider.notices()
        answer = await polled(provider, lambda a: "preempted" in a.failed)
        assert "no answer within 70 s" in str(answer.failed["preempted"])


@in_quiet_time
async def test_without_an_etag_the_key_is_asked_plainly_each_second() -> None:
    """No etag means that nothing can be hung on; the key is polled and answers well."""
    async with watched() as (server, provider):
        server.has_etags = False
        await provider.notices()
        await polled(provider, lambda _: server.plain("preempted") >= 9)
        assert not server.hung("preempted")
        assert since(0) <= 8


@in_quiet_time
async def test_a_server_that_never_hangs_is_not_hammered() -> None:
    """A hanging GET that returns at once unchanged is followed by a pause."""
    async with watched() as (server, provider):
        server.faults["preempted"] = replying(200, "FALSE", ETag="e", **server.headers)
        await provider.notices()
        await polled(provider, lambda _: bool(server.hung("preempted")))
        began, before = virtual_now(), len(server.hung("preempted"))
        await polled(provider, lambda _: len(server.hung("preempted")) >= before + 5)
        assert SHORTEST * 5 <= since(began) <= 5


@in_quiet_time
async def test_404_on_preempted_is_loud_and_says_how_to_mend_it() -> None:
    """Behind GKE's metadata server the signal is unavailable, which is never "not interrupted"."""
    async with watched() as (server, provider):
        server.faults |= {key: replying(404, **server.headers) for key in ALL}
        answer = await provider.notices()
        assert set(answer.failed) == {"preempted"}
        assert type(answer.failed["preempted"]) is Unavailable
        assert "hostNetwork: true" in answer.failed["preempted"].mend
        assert not answer.answered


@pytest.mark.parametrize("status", [404, 503])
@in_quiet_time
async def test_missing_maintenance_schedule_is_unknown_and_quiet(status: int) -> None:
    """A machine type without the key neither fails nor answers "nothing", and the key is looked at again."""
    async with watched() as (server, provider):
        server.faults["upcoming-maintenance"] = replying(status)
        answer = await provider.notices()
        assert not answer.failed
        assert answer.answered == ALL - {"upcoming-maintenance"}
        await polled(provider, lambda _: bool(server.hung("preempted")))
        pauses = since(0) // (SHORTEST * 10)
        assert server.plain("upcoming-maintenance") <= 1 + pauses
        server.faults.clear()
        began = virtual_now()
        await polled(provider, lambda a: "upcoming-maintenance" in a.answered)
        assert since(began) <= 10
