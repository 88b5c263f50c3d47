# SPDX-License-Identifier: Apache-2.0
"""Who loses a connection, or room for a body, when there is not enough for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from spotwatch.received import Received, Verdict
from spotwatch.server import WebhookServer
from spotwatch.webhook_guard import Limits
from tests.raw_http import ROOMY, ask, post, read_reply, until

_SLOW = 600.0
_PATIENT = {"header_seconds": _SLOW, "body_seconds": _SLOW, "request_seconds": _SLOW}
_HALF = "POST /webhook/digitalocean HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n{}\r\nx"


class Holding:
    """A receiver that holds the requests beginning with "hold" until it is let go."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.held = 0

    async def receive(self, request: Received) -> Verdict:
        """Take it."""
        if request.body.startswith(b"hold"):
            self.held += 1
            await self.gate.wait()
        return Verdict(status=202, result="accepted")


class House:
    """A listener, and peers that do not finish what they begin."""

    def __init__(self, limits: Limits) -> None:
        self.receiver = Holding()
        self.results: list[str] = []
        self.server = WebhookServer(
            "127.0.0.1:0",
            receivers={"digitalocean": self.receiver},
            on_request=lambda _, result: self.results.append(result),
            say=lambda _: None,
            limits=limits,
            buckets=ROOMY,
            trusted_proxies=("127.0.0.1",),
        )
        self.writers: list[asyncio.StreamWriter] = []

    async def send(self, raw: bytes, *, address: str = "127.0.0.1") -> asyncio.StreamReader:
        """Send bytes from an address of this machine, and leave the connection open."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port, local_addr=(address, 0))
        self.writers.append(writer)
        writer.write(raw)
        await writer.drain()
        return reader

    async def half(
        self, number: int, *, address: str = "127.0.0.1", sender: str = ""
    ) -> asyncio.StreamReader:
        """Begin a request, and wait until as many have begun as `number` says."""
        lines = f"X-Forwarded-For: {sender}\r\n" if sender else ""
        reader = await self.send(_HALF.format(lines).encode(), address=address)
        await until(lambda: self.begun >= number)
        return reader

    @property
    def begun(self) -> int:
        """Return how many connections have sent all their headers."""
        server = self.server._server
        assert server is not None
        return sum(not getattr(c, "waits_for_headers", True) for c in server.connections)


@asynccontextmanager
async def open_house(**limits: float) -> AsyncIterator[House]:
    """Yield a house that is bound."""
    house = House(Limits(**(_PATIENT | limits)))  # type: ignore[arg-type]  # whole numbers are
    await house.server.start()
    try:
        yield house
    finally:
        house.receiver.gate.set()
        for writer in house.writers:
            writer.close()
        await house.server.close()


async def _is_cut_off(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(15):
            return await reader.read(1) == b""
    except ConnectionError:
        return True


@pytest.mark.hostile(4)
async def test_peers_that_hold_bodies_back_do_not_lock_out_a_notice() -> None:
    """However many come, each newcomer costs one of theirs its place."""
    async with open_house(connections=4) as house:
        for number in range(12):
            await house.half(min(number + 1, 4), address=f"127.0.0.{2 + number % 2}")
            assert (await ask(house.server.port, post("/webhook/digitalocean", b"x"))).status == 202


async def test_who_has_most_connections_loses_the_oldest() -> None:
    """One that has begun earlier keeps its place when it is its network's only one."""
    async with open_house(connections=4) as house:
        only = await house.half(1, address="127.1.0.1")
        crowd = [await house.half(number, address="127.2.0.1") for number in (2, 3, 4)]
        assert (await ask(house.server.port, post("/webhook/digitalocean", b"x"))).status == 202
        assert await _is_cut_off(crowd[0])
        house.writers[0].write(b"x" * 999)
        assert (await read_reply(only)).status == 202


@pytest.mark.hostile(4)
async def test_behind_a_proxy_connections_are_their_sender_s() -> None:
    """As soon as the headers say whose they are."""
    async with open_house(connections=4) as house:
        only = await house.half(1, sender="203.0.113.9")
        crowd = [await house.half(number, sender="198.51.100.1") for number in (2, 3, 4)]
        assert (await ask(house.server.port, post("/webhook/digitalocean", b"x"))).status == 202
        assert await _is_cut_off(crowd[0])
        house.writers[0].write(b"x" * 999)
        assert (await read_reply(only)).status == 202


async def test_a_full_house_of_whole_requests_refuses_the_next() -> None:
    """Nobody whose request is here, body and all, is thrown out for a newcomer."""
    async with open_house(connections=2) as house:
        readers = [await house.send(post("/webhook/digitalocean", b"hold")) for _ in range(2)]
        await until(lambda: house.receiver.held == 2)
        late = await house.send(post("/webhook/digitalocean", b"x"))
        assert await _is_cut_off(late)
        house.receiver.gate.set()
        assert [(await read_reply(reader)).status for reader in readers] == [202, 202]


@pytest.mark.hostile(1)
async def test_large_bodies_share_a_bounded_memory() -> None:
    """The largest that is not whole goes first, one that cannot fit is 503, and a small one always fits."""
    async with open_house(body_bytes=1000, held_bytes=1500, small_bytes=100) as house:
        whole = await house.send(post("/webhook/digitalocean", b"hold" + bytes(896)))
        await until(lambda: house.receiver.held == 1)
        held_back = await house.send(post("/webhook/digitalocean", bytes(1000))[:-450])
        await until(lambda: house.server._room._held() == 1450)
        for size, status in ((100, 202), (700, 503), (400, 202)):
            assert (await ask(house.server.port, post("/webhook/digitalocean", bytes(size)))).status == status
        assert await _is_cut_off(held_back)
        assert house.results.count("limited") == 1
        house.receiver.gate.set()
        assert (await read_reply(whole)).status == 202
    assert house.server._room._held() == 0
