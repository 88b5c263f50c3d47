# SPDX-License-Identifier: Apache-2.0
"""Whose request it is behind a reverse proxy, and that nobody can say that it is another's."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from spotwatch.rate_limits import TokenBuckets
from spotwatch.server import WebhookServer
from tests.raw_http import PlayedReceiver, ask, post

LOOPBACK = ("127.0.0.1",)


async def peers(trusted: Collection[str], *headers: str, buckets: TokenBuckets | None = None) -> list[str]:
    """Send a request with each of these header lines, and return whom the receiver took them for."""
    receiver = PlayedReceiver()
    server = WebhookServer(
        "127.0.0.1:0",
        receivers={"digitalocean": receiver},
        on_request=lambda *_: None,
        say=lambda _: None,
        trusted_proxies=trusted,
        buckets=buckets,
    )
    await server.start()
    try:
        for lines in headers:
            await ask(server.port, post("/webhook/digitalocean", b"x", lines))
    finally:
        await server.close()
    return [got.peer for got in receiver.got]


@pytest.mark.parametrize(
    ("trusted", "lines", "peer"),
    [
        ((), "X-Forwarded-For: 203.0.113.9\r\n", "127.0.0.1"),
        (("10.0.0.1",), "X-Forwarded-For: 203.0.113.9\r\n", "127.0.0.1"),
        (LOOPBACK, "X-Forwarded-For: 203.0.113.9\r\n", "203.0.113.9"),
        (LOOPBACK, "X-Forwarded-For: 198.51.100.1, 203.0.113.9\r\n", "203.0.113.9"),
        (LOOPBACK, "X-Forwarded-For: 198.51.100.1\r\nX-Forwarded-For: 203.0.113.9\r\n", "203.0.113.9"),
        (LOOPBACK, "X-Forwarded-For: 2001:DB8::1\r\n", "2001:db8::1"),
        (LOOPBACK, "X-Forwarded-For: 203.0.113.9, unknown\r\n", "127.0.0.1"),
        (LOOPBACK, "X-Forwarded-For: \r\n", "127.0.0.1"),
        (LOOPBACK, "", "127.0.0.1"),
    ],
)
async def test_only_a_trusted_proxy_is_asked_whom_it_speaks_for(
    trusted: Collection[str], lines: str, peer: str
) -> None:
    """And only the entry that it added itself counts."""
    assert await peers(trusted, lines) == [peer]


async def test_one_peer_behind_a_proxy_uses_up_its_own_share() -> None:
    """A flood by one leaves room for the request of another."""
    buckets = TokenBuckets(peer_rate=0.001, peer_burst=3)
    flood = ["X-Forwarded-For: 198.51.100.1\r\n"] * 10
    heard = await peers(LOOPBACK, *flood, "X-Forwarded-For: 203.0.113.9\r\n", buckets=buckets)
    assert heard == ["198.51.100.1"] * 3 + ["203.0.113.9"]
