# SPDX-License-Identifier: Apache-2.0
"""A real Caddy before the webhook, with the settings of docs/mail.md: TLS, limits, and whose request it is.

It does not get a certificate from the outside: `tls internal` and two free ports are added to the page's
lines.
"""

from __future__ import annotations

import asyncio
import io
import re
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest

from spotwatch.server import WebhookServer
from spotwatch.webhooks import TIMESTAMP, signed_headers, verify
from tests.raw_http import PlayedReceiver

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

_PAGE = Path(__file__).parents[2] / "docs" / "mail.md"
_KEY = bytes(range(32))


@dataclass(slots=True)
class _Site:
    """A running proxy and what came through it."""

    url: str
    certificate: Path
    receiver: PlayedReceiver

    async def post(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> int:
        """Post over TLS, verified by the proxy's own root, and return the status."""
        context = ssl.create_default_context(cafile=self.certificate)
        # As a stream: aiohttp warns of large bytes.
        stream = io.BytesIO(body)
        async with (
            aiohttp.ClientSession(trust_env=False) as session,
            session.post(f"{self.url}{path}", data=stream, headers=headers, ssl=context) as response,
        ):
            return response.status


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _caddyfile(hook: int, https: int, http: int) -> str:
    [site] = re.findall(r"```caddyfile\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    options = f"{{\n\tadmin off\n\tskip_install_trust\n\thttp_port {http}\n\thttps_port {https}\n}}\n"
    site = str(site).replace("spot.example.com {", "localhost {\n\ttls internal", 1)
    return options + site.replace("127.0.0.1:9476", f"127.0.0.1:{hook}")


@asynccontextmanager
async def _site(folder: Path, caddy: str) -> AsyncIterator[_Site]:
    """Run the page's Caddy before a webhook server of ours."""
    receiver = PlayedReceiver()
    server = WebhookServer(
        "127.0.0.1:0",
        receivers={"digitalocean": receiver},
        on_request=lambda *_: None,
        say=print,
        trusted_proxies=("127.0.0.1",),
    )
    await server.start()
    https = _free_port()
    config = folder / "Caddyfile"
    config.write_text(_caddyfile(server.port, https, _free_port()))
    environment = {"HOME": str(folder), "XDG_DATA_HOME": str(folder / "data")}
    with (folder / "caddy.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: ASYNC220 - it only starts
            [caddy, "run", "--config", str(config), "--adapter", "caddyfile"],
            env=environment,
            stdout=log,
            stderr=log,
        )
    root = folder / "data" / "caddy" / "pki" / "authorities" / "local" / "root.crt"
    try:
        until = time.monotonic() + 30
        while not await asyncio.to_thread(_answers, https, root):
            assert process.poll() is None, (folder / "caddy.log").read_text()
            assert time.monotonic() < until, (folder / "caddy.log").read_text()
            await asyncio.sleep(0.1)
        yield _Site(f"https://localhost:{https}", root, receiver)
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 20)
        await server.close()


def _answers(port: int, root: Path) -> bool:
    if not root.exists():
        return False
    try:
        context = ssl.create_default_context(cafile=root)
        with (
            socket.create_connection(("127.0.0.1", port), timeout=1) as plain,
            context.wrap_socket(plain, server_hostname="localhost"),
        ):
            return True
    except (OSError, ssl.SSLError):
        return False


async def test_what_the_page_prints_carries_signed_bytes_through_tls(tmp_path: Path, caddy: str) -> None:
    """The signature still holds behind the proxy, and the peer is the sender's address, not the proxy's."""
    async with _site(tmp_path, caddy) as site:
        body = b"From: a\r\n\r\n\xff\x00 8 bits\n"
        stamp = int(time.time())
        headers = {
            **signed_headers(_KEY, "msg_1", stamp, body),
            "Content-Type": "message/rfc822",
            # What a sender says of itself must not count.
            "X-Forwarded-For": "198.51.100.7",
        }
        assert await site.post("/webhook/digitalocean/standard", body, headers) == 202
        [got] = site.receiver.got
        assert got.body == body
        assert got.path == "standard"
        assert got.peer in {"127.0.0.1", "::1"}
        assert int(got.headers[TIMESTAMP]) == stamp
        assert verify(got.headers, got.body, [_KEY], now=datetime.now(UTC)) == "msg_1"


async def test_nothing_but_the_webhook_is_reached(tmp_path: Path, caddy: str) -> None:
    """Other paths are 404 by the proxy, and a body beyond the limit never gets here."""
    async with _site(tmp_path, caddy) as site:
        for path in ("/metrics", "/status", "/", "/webhook/../metrics"):
            assert await site.post(path, b"x") == 404
        assert await site.post("/webhook/digitalocean", b"x" * 1_100_000) == 413
        assert site.receiver.got == []
