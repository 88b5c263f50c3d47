# SPDX-License-Identifier: Apache-2.0
"""The emulator itself: address, record, events, many clients at once, and nothing left behind.

Pages and faults have tests of their own.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter

import aiohttp
import pytest

from spotwatch.emulator import Emulator, Request, clouds
from spotwatch.model import Event
from spotwatch.testing import EPOCH
from tests.emulator.client import AZURE, EVENTS, GOOGLE, V1, HandClock, ask, token, until
from tests.leaks import open_sockets
from tests.quiet import in_quiet_time, since, virtual_now

VARIABLES = {
    "aws": "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "gcp": "GCE_METADATA_HOST",
    "azure": "SPOTWATCH_PROVIDER__AZURE__ENDPOINT",
    "digitalocean": "SPOTWATCH_PROVIDER__DIGITALOCEAN__ENDPOINT",
}


@pytest.mark.parametrize("name", clouds())
async def test_environment_points_here(name: str) -> None:
    """Each cloud's own variable holds the address, with a scheme but for Google's."""
    async with Emulator(name) as cloud:
        assert cloud.base_url == f"http://127.0.0.1:{cloud.port}"
        value = cloud.base_url.removeprefix("http://") if name == "gcp" else cloud.base_url
        assert cloud.environment == {VARIABLES[name]: value}
        assert cloud.port > 0


async def test_ipv6() -> None:
    """On an IPv6 address the URL has its brackets."""
    async with Emulator("digitalocean", host="::1") as cloud:
        assert cloud.base_url == f"http://[::1]:{cloud.port}"
        assert (await ask(cloud, "/metadata/v1/id")).status == 200


async def test_taken_port_is_an_error() -> None:
    """Two emulators do not share a port."""
    async with Emulator("aws") as first:
        with pytest.raises(OSError, match="in use"):
            async with Emulator("gcp", port=first.port):
                pass


async def test_requests_are_kept() -> None:
    """Each request is on record with moment, method, path, headers, page and status."""
    async with Emulator("gcp", clock=HandClock()) as cloud:
        await ask(cloud, f"{V1}/preempted?alt=json", GOOGLE)
        await ask(cloud, "/elsewhere", method="POST", data=b"why")
        first, second = cloud.requests
    assert first == Request(
        at=EPOCH,
        method="GET",
        path=f"{V1}/preempted?alt=json",
        headers=first.headers,
        page="preempted",
        status=200,
    )
    assert first.headers["metadata-flavor"] == "Google"
    assert (second.method, second.body, second.page, second.status) == ("POST", b"why", "identity", 405)


async def test_events_are_told_in_order() -> None:
    """A listener hears of notices, faults and requests as they happen."""
    heard: list[Event] = []
    async with Emulator("aws", listener=heard.append, clock=HandClock()) as cloud:
        cloud.announce(60, action="stop")
        cloud.fault("429", times=1)
        await ask(cloud, "/latest/meta-data/instance-id")
        cloud.heal()
        cloud.withdraw()
    assert [e.name for e in heard] == ["announced", "fault", "request", "healed", "withdrawn"]
    assert heard[0].to_json() == {
        "at": "2026-11-29T12:00:00.000Z",
        "event": "announced",
        "provider": "aws",
        "signal": "instance-action",
        "deadline": "2026-11-29T12:01:00.000Z",
        "window_seconds": 60,
        "action": "stop",
    }
    assert heard[2].data == {
        "method": "GET",
        "path": "/latest/meta-data/instance-id",
        "status": 429,
        "fault": "429",
    }


@pytest.mark.parametrize("name", clouds())
async def test_64_clients_at_once(name: str) -> None:
    """64 clients on kept connections, with notices coming and going, see no error."""
    async with Emulator(name) as cloud:
        path, headers = {
            "aws": ("/latest/meta-data/instance-id", {}),
            "gcp": (f"{V1}/preempted", GOOGLE),
            "azure": (EVENTS, AZURE),
            "digitalocean": ("/metadata/v1/id", {}),
        }[name]
        statuses: Counter[int] = Counter()

        async def client(session: aiohttp.ClientSession) -> None:
            own = await token(cloud) if name == "aws" else headers
            for _ in range(10):
                async with session.get(cloud.base_url + path, headers=own) as got:
                    await got.read()
                    statuses[got.status] += 1
                if name != "digitalocean":
                    cloud.announce()
                    cloud.withdraw()

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*(client(session) for _ in range(64)))
    assert statuses == {200: 64 * 10}


async def test_64_clients_wait_and_all_hear() -> None:
    """One change answers every waiting request."""
    async with (
        Emulator("gcp") as cloud,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):

        async def wait() -> str:
            url = f"{cloud.base_url}{V1}/preempted?wait_for_change=true"
            async with session.get(url, headers=GOOGLE) as got:
                return await got.text()

        waiting = [asyncio.create_task(wait()) for _ in range(64)]
        await until(lambda: len(cloud.requests) == 64)
        cloud.announce()
        assert await asyncio.gather(*waiting) == ["TRUE"] * 64


@pytest.mark.parametrize(
    "state", ["idle", "hang", "waiting", "slow-body", "stalled", "refuse", "healed", "pushing"]
)
@in_quiet_time
async def test_nothing_is_left(state: str) -> None:
    """Whatever was under way, no task and no socket outlives the emulator."""
    tasks, sockets = asyncio.all_tasks(), open_sockets()
    began = virtual_now()
    cloud = Emulator("gcp")
    if state == "pushing":
        secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3"
        cloud = Emulator("digitalocean", webhook_url="http://127.0.0.1:9/", secret=secret)
    client: asyncio.Task[object] | None = None
    async with cloud:
        path = f"{V1}/preempted" + ("?wait_for_change=true" if state == "waiting" else "")
        if state in ("hang", "slow-body", "refuse"):
            cloud.fault(state)
        if state == "healed":
            cloud.fault("refuse")
            cloud.heal()
        if state == "stalled":
            cloud.fault("10-mb")
            stalled = socket.create_connection(("127.0.0.1", cloud.port))
            stalled.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nMetadata-Flavor: Google\r\n\r\n".encode())
            await until(lambda: cloud.requests and cloud.requests[0].status)
        if state in ("hang", "waiting", "slow-body"):
            client = asyncio.create_task(ask(cloud, path, GOOGLE))
            await until(lambda: cloud.requests)
        if state == "pushing":
            cloud.announce()
            await asyncio.sleep(0)
    took = since(began)
    if state == "stalled":
        await until(lambda: len(open_sockets() - sockets) == 1)
        stalled.close()
    if client is not None:
        with pytest.raises(aiohttp.ClientError):
            await client
    assert took < 2
    await until(lambda: asyncio.all_tasks() == tasks)
    await until(lambda: not open_sockets() - sockets)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", cloud.port)


@in_quiet_time
async def test_a_client_that_leaves_is_forgotten() -> None:
    """A waiting request whose client has gone holds no task."""
    async with Emulator("gcp") as cloud:
        tasks = asyncio.all_tasks()
        with pytest.raises(TimeoutError):
            await ask(cloud, f"{V1}/preempted?wait_for_change=true", GOOGLE, limit_seconds=0.2)
        await until(lambda: asyncio.all_tasks() <= tasks)
