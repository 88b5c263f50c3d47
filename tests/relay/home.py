# SPDX-License-Identifier: Apache-2.0
"""A relay's files, the relay run from them in this process, and what a client asks of it.

It holds no test.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from spotwatch.cli._options import Options, load_settings
from spotwatch.clock import SystemClock
from spotwatch.config import Settings
from spotwatch.mail.mailbox import Address
from spotwatch.relay.service import Relay
from spotwatch.webhooks import signed_headers
from tests.mail.letters import KEY, OURS

SECRET = bytes(range(32))
HERE = Address(OURS)


class Home:
    """A relay's files.

    Args:
        folder: where they are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state_dir = folder / "state"
        self.box = folder / "box"
        self.droplets = f"[[relay.droplet]]\nid = {OURS}\nnames = ['spot-1']\n"
        self.relay = ""
        self.listen = "127.0.0.1:0"
        self.http = "127.0.0.1:0"
        self.is_clock_synced: bool | None = True
        self.secret("hook", "whsec_" + base64.b64encode(SECRET).decode())
        self.secret("key", KEY.secret_text)
        self.secret("token", "dop_v1_secret")

    def secret(self, name: str, text: str) -> None:
        """Write a file for us alone."""
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(text)

    @property
    def config(self) -> Path:
        """Write the configuration and return its path."""
        path = self.folder / "spotwatch.toml"
        path.write_text(
            f"state_dir = '{self.state_dir}'\n"
            f"runtime_dir = '{self.folder / 'run'}'\n"
            f"[http]\nlisten = '{self.http}'\n"
            f"[webhook]\nlisten = '{self.listen}'\nsecret_files = ['{self.folder / 'hook'}']\n"
            f"[relay]\nmailbox = '{self.box.as_uri()}'\nkey_file = '{self.folder / 'key'}'\n{self.relay}"
            f"{self.droplets}"
        )
        return path

    @property
    def settings(self) -> Settings:
        """Return the settings as the command loads them."""
        return load_settings(Options(config=self.config), environ={}).settings

    def open(self) -> Relay:
        """Return a relay that does not run yet."""
        return Relay(self.settings, SystemClock(), environ={}, clock_sync=lambda: self.is_clock_synced)


@asynccontextmanager
async def running(relay: Relay) -> AsyncIterator[None]:
    """Run a relay, and end it."""
    serving_ = asyncio.create_task(relay.serve())
    try:
        yield
    finally:
        relay.end()
        assert await serving_ == 0


async def until(condition: Callable[[], object]) -> None:
    """Return once `condition` holds."""
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110 - of another task or process, which sets no event
            await asyncio.sleep(0.01)


async def notify(port: int, row: dict[str, object]) -> int:
    """Post a signed notice and return the status."""
    body = json.dumps(row).encode()
    headers = signed_headers(SECRET, f"msg_{len(body)}", int(SystemClock().now().timestamp()), body)
    url = f"http://127.0.0.1:{port}/webhook/digitalocean"
    async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=headers) as answer:
        return answer.status


async def page(port: int, path: str) -> tuple[int, str]:
    """Return status and text of a page."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()
