# SPDX-License-Identifier: Apache-2.0
"""A Droplet's metadata service as documented, and the signed message of a relay.

The receiver is a real server that keeps what it is sent; the oracle of the signature is written out here.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import ClientError, web

from spotwatch.emulator import Emulator
from spotwatch.errors import ConfigError
from tests.emulator.client import HandClock, ask, until

KEY = b"0123456789abcdef0123456789abcdef"
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


@dataclass
class Webhook:
    """What a receiver was sent; `statuses` are its next answers, 202 after them."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    got: list[tuple[Mapping[str, str], bytes]] = field(default_factory=list)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Return the bodies as JSON."""
        return [json.loads(body) for _, body in self.got]


@asynccontextmanager
async def webhook() -> AsyncIterator[Webhook]:
    """Receive messages on a free port."""
    seen = Webhook()

    async def take(request: web.BaseRequest) -> web.Response:
        seen.got.append(({k.lower(): v for k, v in request.headers.items()}, await request.read()))
        return web.Response(status=seen.statuses.pop(0) if seen.statuses else 202)

    runner = web.ServerRunner(web.Server(take))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    seen.url = f"http://127.0.0.1:{runner.addresses[0][1]}/webhook/digitalocean"
    try:
        yield seen
    finally:
        await runner.cleanup()


def is_signed(headers: Mapping[str, str], body: bytes) -> bool:
    """Tell whether a message is signed as Standard Webhooks 1.0.0 says."""
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    wanted = base64.b64encode(hmac.digest(KEY, content, hashlib.sha256)).decode()
    return headers["webhook-signature"] == f"v1,{wanted}"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("id", "512345678"),
        ("hostname", "spot-trainer-01"),
        ("region", "atl1"),
        ("tags/", "spot\ntraining"),
        ("interfaces/", "public/\nprivate/"),
        ("interfaces/public/0/ipv4/address", "203.0.113.7"),
        ("interfaces/private/0/ipv4/address", "10.132.0.7"),
    ],
)
async def test_metadata_key_by_key(path: str, text: str) -> None:
    """Each key is plain text and needs no header."""
    async with Emulator("digitalocean") as cloud:
        got = await ask(cloud, f"/metadata/v1/{path}")
    assert (got.status, got.text) == (200, text)
    assert got.headers["content-type"].startswith("text/plain")


async def test_metadata_index_and_unknown_paths() -> None:
    """The index lists the documented keys; without its slash it is 301, and anything else 404."""
    async with Emulator("digitalocean") as cloud:
        index = (await ask(cloud, "/metadata/v1/")).text.split("\n")
        for path in ("/metadata/v1", "/metadata/v1/tags", "/metadata/v1/interfaces/public/0"):
            got = await ask(cloud, path)
            assert (got.status, got.headers["location"]) == (301, f"{path}/")
        for path in ("/metadata/v1/termination", "/metadata/v1/id/", "/", "/metadata", "/metadata/v2/"):
            assert (await ask(cloud, path)).status == 404
    documented = "id hostname user-data vendor-data public-keys region interfaces/ dns/ floating_ip/"
    assert {*documented.split(), "reserved_ip/", "tags/", "features/"} == set(index)


@pytest.mark.parametrize("path", ["/metadata/v1/user-data", "/metadata/v1.json"])
async def test_reading_secrets_leaves_a_trace(path: str) -> None:
    """User data is there, and whoever reads it is on record."""
    async with Emulator("digitalocean") as cloud:
        await ask(cloud, "/metadata/v1/id")
        assert not [r for r in cloud.requests if r.page == "user-data"]
        assert "cloud-config" in (await ask(cloud, path)).text
        assert [r.path for r in cloud.requests if r.page == "user-data"] == [path]


@pytest.mark.parametrize("as_array", [False, True])
async def test_whole_document(as_array: bool) -> None:
    """The document is an object, or an array around it as the documentation's sample."""
    async with Emulator("digitalocean", droplet_id=7, as_array=as_array) as cloud:
        found = json.loads((await ask(cloud, "/metadata/v1.json")).body)
    whole = found[0] if as_array else found
    assert whole["droplet_id"] == 7
    assert {"hostname", "region", "interfaces", "dns", "public_keys", "tags", "features"} <= set(whole)


async def test_push_is_signed() -> None:
    """A message names the Droplet and its time, and its signature covers id, time and body."""
    async with Emulator("digitalocean", clock=HandClock()) as cloud, webhook() as hook:
        assert await cloud.push(hook.url, SECRET) == 202
        assert (
            await cloud.push(hook.url, SECRET, name="spot-1", at="2026-11-29T14:00:00Z", message_id="m")
            == 202
        )
        assert await cloud.push(hook.url, SECRET, event="cancel") == 202
    assert hook.messages == [
        {"event": "reclaim", "droplet_id": 512345678, "at": "2026-11-29T14:00:00.000Z"},
        {"event": "reclaim", "name": "spot-1", "at": "2026-11-29T14:00:00Z"},
        {"event": "cancel", "droplet_id": 512345678},
    ]
    for headers, body in hook.got:
        assert is_signed(headers, body)
        assert not is_signed(headers, body + b" ")
        assert headers["content-type"] == "application/json"
        assert headers["webhook-timestamp"] == "1795953600"
    assert hook.got[1][0]["webhook-id"] == "m"
    assert hook.got[0][0]["webhook-id"] != hook.got[2][0]["webhook-id"]


async def test_announce_delivers_until_it_is_taken() -> None:
    """A relay told 503 comes again with the same message; withdrawing sends a cancel."""
    async with webhook() as hook:
        hook.statuses = [503]
        async with Emulator("digitalocean", clock=HandClock(), webhook_url=hook.url, secret=SECRET) as cloud:
            cloud.announce(60)
            await until(lambda: len(hook.got) == 2)
            cloud.withdraw()
            await until(lambda: len(hook.got) == 3)
    assert [m["event"] for m in hook.messages] == ["reclaim", "reclaim", "cancel"]
    assert hook.messages[0]["at"] == "2026-11-29T12:01:00.000Z"
    assert hook.got[0] == hook.got[1]


async def test_faults_are_told_in_the_message() -> None:
    """A neighbour's, doubled, past, skewed or withheld message."""
    async with Emulator("digitalocean", clock=HandClock()) as cloud, webhook() as hook:
        cloud.fault("neighbour", times=1)
        await cloud.push(hook.url, SECRET)
        cloud.fault("duplicate", times=1)
        await cloud.push(hook.url, SECRET)
        cloud.fault("past-time", times=1)
        await cloud.push(hook.url, SECRET, at=cloud.clock.now())
        cloud.fault("clock-skew", times=1, seconds=-600)
        await cloud.push(hook.url, SECRET, at=cloud.clock.now())
        cloud.fault("withdrawal", times=1)
        assert await cloud.push(hook.url, SECRET) == 0
    told = hook.messages
    assert told[0]["droplet_id"] != 512345678
    assert hook.got[1] == hook.got[2]
    assert told[3]["at"] == "2026-11-29T11:00:00.000Z"
    assert told[4]["at"] == "2026-11-29T11:50:00.000Z"
    assert hook.got[4][0]["webhook-timestamp"] == str(1795953600 - 600)
    assert len(told) == 5


async def test_push_refuses_what_cannot_work() -> None:
    """No webhook, no secret, a secret that is none, another cloud, nobody there: each says so."""
    async with Emulator("digitalocean") as cloud:
        with pytest.raises(ConfigError, match="give webhook_url and secret"):
            await cloud.push(None, SECRET)
        with pytest.raises(ConfigError, match="give the emulator webhook_url and secret"):
            cloud.announce()
        with pytest.raises(ConfigError, match="not base64"):
            await cloud.push("http://127.0.0.1:9/", "whsec_!")
        with pytest.raises(ClientError):
            await cloud.push("http://127.0.0.1:9/", SECRET)
    async with Emulator("aws") as cloud:
        with pytest.raises(ConfigError, match="aws pushes nothing"):
            await cloud.push("http://127.0.0.1:9/", SECRET)
