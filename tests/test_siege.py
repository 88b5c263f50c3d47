# SPDX-License-Identifier: Apache-2.0
"""Hundreds of peers that hold the webhook's listener: health, polls and the one notice get through.

The loop keeps its pace meanwhile; `tests/lag.py` says how that is measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from spotwatch.rate_limits import TokenBuckets
from spotwatch.server import MetricsServer, WebhookServer
from spotwatch.webhook_guard import Limits
from tests.lag import watching
from tests.raw_http import FAST, ROOMY, PlayedReceiver, ask, get, post

PEERS = 500
_HALF = b"POST /webhook/digitalocean HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


class Fort:
    """Both listeners on one loop, and something that polls."""

    def __init__(self, limits: Limits, buckets: TokenBuckets) -> None:
        self.receiver = PlayedReceiver()
        self.results: list[str] = []
        self.polls = 0
        self.hook = WebhookServer(
            "127.0.0.1:0",
            receivers={"digitalocean": self.receiver},
            on_request=lambda _, result: self.results.append(result),
            say=lambda _: None,
            limits=limits,
            buckets=buckets,
        )
        self.health = MetricsServer(
            "127.0.0.1:0",
            render=lambda _: (b"up 1\n", "text/plain"),
            is_healthy=lambda: True,
            not_ready=list,
            status=dict,
            say=lambda _: None,
        )

    async def poll(self) -> None:
        """Poll for ever, as a watcher does."""
        while True:
            await asyncio.sleep(0.01)
            self.polls += 1


@asynccontextmanager
async def standing(limits: Limits = FAST, buckets: TokenBuckets = ROOMY) -> AsyncIterator[Fort]:
    """Yield a fort whose listeners are bound."""
    fort = Fort(limits, buckets)
    await fort.hook.start()
    await fort.health.start()
    polling = asyncio.create_task(fort.poll())
    try:
        yield fort
    finally:
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        await fort.hook.close()
        await fort.health.close()


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect, and let the listener accept: what overflows the kernel's queue it never sees."""
    connected = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.sleep(0)
    return connected


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say nothing until cut off."""
    await _until_cut_off(reader, writer)


async def _half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a piece of the headers, and no more."""
    writer.write(_HALF[:40])
    await _until_cut_off(reader, writer)


async def _dripping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a body of which each byte takes its time."""
    writer.write(_HALF)
    await _until_cut_off(reader, writer, drip=b"x")


async def _until_cut_off(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, drip: bytes = b""
) -> None:
    try:
        async with asyncio.timeout(15):
            while True:
                writer.write(drip)
                try:
                    async with asyncio.timeout(0.1):
                        if not await reader.read(1000):
                            return
                except TimeoutError:
                    continue
    except ConnectionError:
        return
    finally:
        writer.close()


@pytest.mark.hostile(4)
@pytest.mark.parametrize("behave", [_silent, _half, _dripping], ids=["silent", "headers", "body"])
async def test_hundreds_of_slow_peers(behave: Behaviour) -> None:
    """All are cut off; in between a notice is heard, health answers each time, and the polls go on."""
    async with standing() as fort, watching() as lag:
        peers = [asyncio.create_task(behave(*await _connect(fort.hook.port))) for _ in range(PEERS)]
        before = fort.polls
        for _ in range(20):
            assert (await ask(fort.health.port, get("/healthz"))).status == 200
        await _deliver(fort)
        await asyncio.gather(*peers)
        assert fort.polls > before
        assert b"notice" in [received.body for received in fort.receiver.got]
        assert lag.is_fine, lag


async def _deliver(fort: Fort) -> None:
    """Post as a service does: again, while the house is full."""
    async with asyncio.timeout(15):
        while True:
            try:
                if (await ask(fort.hook.port, post("/webhook/digitalocean", b"notice"))).status == 202:
                    return
            except (ConnectionError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.05)


@pytest.mark.hostile(5)
async def test_a_thousand_requests_in_one_breath() -> None:
    """They end at the peer's burst, health answers, and the loop is not held up."""
    buckets = TokenBuckets(peer_rate=0.001, peer_burst=30)
    async with standing(buckets=buckets) as fort, watching() as lag:
        _, writer = await asyncio.open_connection("127.0.0.1", fort.hook.port)
        writer.write(post("/webhook/digitalocean", b"x") * 1000)
        for _ in range(20):
            assert (await ask(fort.health.port, get("/healthz"))).status == 200
        async with asyncio.timeout(15):
            while "limited" not in fort.results:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.01)
        writer.close()
        assert fort.results == ["accepted"] * 30 + ["limited"]
        assert lag.is_fine, lag
