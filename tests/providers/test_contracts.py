# SPDX-License-Identifier: Apache-2.0
"""What holds for every provider that is polled, whatever its cloud sends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from spotwatch.errors import ProviderError, Unavailable
from spotwatch.model import Answer
from spotwatch.providers import Identified, Provider, _metadata, load
from spotwatch.testing import FakeClock
from tests.providers.clouds import CLOUDS, NOT_FOUND, Cloud, Outcome
from tests.providers.raw_server import FAULTS, RawServer, body, hang, reset
from tests.quiet import in_quiet_time, since, virtual_now

BEHAVIOURS = {name: fault.behave for name, fault in FAULTS.items()} | {"404": NOT_FOUND}


@pytest.fixture(params=sorted(CLOUDS))
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cloud:
    """Return one cloud after the other, on a machine without DMI texts."""
    monkeypatch.setattr(_metadata, "_DMI", tmp_path)
    return CLOUDS[request.param]


class Poller:
    """Polls a provider with all its signals due, and checks what holds for every answer."""

    def __init__(self, provider: Provider, clock: FakeClock) -> None:
        self.provider = provider
        self._clock = clock

    async def __call__(self) -> Answer:
        """Return the next answer."""
        self._clock.boot_offset_seconds += 60
        began = virtual_now()
        answer = await self.provider.notices()
        assert since(began) <= 1
        assert answer.answered.isdisjoint(answer.failed)
        assert answer.answered | set(answer.failed) <= set(self.provider.signals)
        assert len({notice.id for notice in answer.notices}) == len(answer.notices)
        for moment in _moments(answer):
            assert moment.utcoffset() == timedelta(0)
        return answer


def _moments(answer: Answer) -> Iterator[datetime]:
    if answer.server_at is not None:
        yield answer.server_at
    for notice in answer.notices:
        yield from (m for m in (notice.seen_at, notice.deadline, notice.issued_at) if m is not None)


def _outcome(answer: Answer, signal: str) -> Outcome:
    if signal in answer.failed:
        return type(answer.failed[signal])
    return "none" if signal in answer.answered else "unasked"


def test_the_contract_covers_every_signal(cloud: Cloud) -> None:
    """A provider cannot grow a signal that these tests do not know."""
    provider = cloud.provider("http://127.0.0.1:1", FakeClock())
    assert set(provider.signals) == set(cloud.paths) == set(cloud.storm)
    assert type(provider).name == cloud.name
    assert type(provider) is load(cloud.name)
    assert type(provider).absence_withdraws


@pytest.mark.hostile(62, 63, 64, 67)
@pytest.mark.parametrize("fault", sorted(BEHAVIOURS))
@in_quiet_time
async def test_a_fault_of_one_signal(cloud: Cloud, fault: str) -> None:
    """It is the right error for that signal alone, and the first poll after it has the same notice again.

    A failing signal is never in `answered`, so it can neither withdraw what is in force nor hide another.
    """
    clock = FakeClock()
    async with cloud.server() as server, cloud.provider(server.url, clock) as provider:
        poll = Poller(provider, clock)
        assert (await poll()).answered == set(cloud.paths)
        for signal, path in cloud.paths.items():
            calm = server.routes.get(path, NOT_FOUND)
            server.routes[path] = cloud.storm[signal]
            (notice,) = (await poll()).notices
            assert notice.signal == signal
            server.routes[path] = BEHAVIOURS[fault]
            answer = await poll()
            assert _outcome(answer, signal) == cloud.expected(signal, fault)
            assert answer.answered - {signal} == set(cloud.paths) - {signal}
            assert {one.id for one in answer.notices} <= {notice.id}
            server.routes[path] = cloud.storm[signal]
            answer = await poll()
            assert [one.id for one in answer.notices] == [notice.id]
            assert answer.answered == set(cloud.paths)
            server.routes[path] = calm
            assert (await poll()).notices == ()
        assert server.asked("/elsewhere") == 0


@in_quiet_time
async def test_ids_are_stable_over_polls_and_restarts(cloud: Cloud) -> None:
    """The same payload gives the same ids, in the same process and in another life."""
    lives = []
    async with cloud.server() as server:
        for signal, path in cloud.paths.items():
            server.routes[path] = cloud.storm[signal]
        for _ in range(2):
            clock = FakeClock()
            async with cloud.provider(server.url, clock) as provider:
                poll = Poller(provider, clock)
                lives += [sorted(notice.id for notice in (await poll()).notices) for _ in range(3)]
    assert lives[0]
    assert all(ids == lives[0] for ids in lives)


@in_quiet_time
async def test_a_refused_connection(cloud: Cloud) -> None:
    """Nobody listens: every signal is unavailable, poll after poll."""
    async with cloud.server() as server:
        url = server.url
    clock = FakeClock()
    async with cloud.provider(url, clock) as provider:
        poll = Poller(provider, clock)
        for _ in range(5):
            answer = await poll()
            assert answer.answered == frozenset()
            assert {_outcome(answer, signal) for signal in cloud.paths} == {Unavailable}


@pytest.mark.hostile(66)
@in_quiet_time
async def test_proxies_are_never_used(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxy variables change nothing: a link-local service is behind no proxy."""
    clock = FakeClock()
    async with RawServer() as proxy, cloud.server() as server:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        async with cloud.provider(server.url, clock) as provider:
            assert (await Poller(provider, clock)()).answered == set(cloud.paths)
            assert await provider.detect()
        assert proxy.requests == []


@pytest.mark.parametrize("behaviour", [hang, reset, body("<html>")])
@in_quiet_time
async def test_leaving_leaves_nothing(cloud: Cloud, behaviour: object) -> None:
    """Neither a task nor a connection outlives the context, whatever was under way."""
    before = asyncio.all_tasks()
    clock = FakeClock()
    async with cloud.server() as server:
        async with cloud.provider(server.url, clock) as provider:
            await provider.notices()
            for path in cloud.paths.values():
                server.routes[path] = behaviour  # type: ignore[assignment] # parametrised
            await Poller(provider, clock)()
            for call in (provider.wait, provider.notices):
                task = asyncio.create_task(call())
                await asyncio.wait({task}, timeout=0.05)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        assert _ours(before, server) == set()
        await server.wait_until_idle()


def _ours(before: set[asyncio.Task[object]], server: RawServer) -> set[asyncio.Task[object]]:
    """Return the tasks that are neither the test's nor the server's."""
    return {task for task in asyncio.all_tasks() - before if task not in server.tasks}


@pytest.mark.parametrize("fault", sorted(BEHAVIOURS))
@in_quiet_time
async def test_detection_never_raises(cloud: Cloud, fault: str) -> None:
    """Whatever answers in the cloud's place, it is quickly a no, and nothing stays open."""
    before = asyncio.all_tasks()
    async with RawServer() as server:
        for path in (*cloud.calm, *cloud.paths.values(), cloud.identity_path):
            server.routes[path] = BEHAVIOURS[fault]
        began = virtual_now()
        assert await cloud.provider(server.url, FakeClock()).detect() is False
        assert since(began) < 2
        # One request; the HTTP client itself repeats it once when the connection is cut.
        assert len(server.requests) <= 2
        assert len({(asked.method, asked.path) for asked in server.requests}) <= 1
        assert _ours(before, server) == set()
        await server.wait_until_idle()


@in_quiet_time
async def test_detection_tells_the_clouds_apart(cloud: Cloud) -> None:
    """Of all providers only the cloud's own takes its service for its own."""
    async with cloud.server() as server:
        found = {name for name, c in CLOUDS.items() if await c.provider(server.url, FakeClock()).detect()}
    assert found == {cloud.name}


@pytest.mark.parametrize("fault", sorted(BEHAVIOURS))
@in_quiet_time
async def test_a_fault_of_the_identity(cloud: Cloud, fault: str) -> None:
    """Not knowing who we are is a `ProviderError`, and is asked again."""
    async with cloud.server() as server, cloud.provider(server.url, FakeClock()) as provider:
        assert isinstance(provider, Identified)
        good = server.routes[cloud.identity_path]
        server.routes[cloud.identity_path] = BEHAVIOURS[fault]
        with pytest.raises(ProviderError):
            await provider.identity()
        server.routes[cloud.identity_path] = good
        assert await provider.identity()
