# SPDX-License-Identifier: Apache-2.0
"""What tests of providers share: no cloud's variables of whoever runs them, and a Droplet in use."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from tests.providers.do_shop import Desk, Metadata, Shop

_PREFIXES = ("AWS_", "GCE_", "KUBERNETES_")


@pytest.fixture(autouse=True)
def _no_cloud_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tuple(os.environ):
        if name.startswith(_PREFIXES):
            monkeypatch.delenv(name)


@pytest.fixture
async def metadata() -> AsyncIterator[Metadata]:
    """Return a running metadata service."""
    played = Metadata()
    played.open.set()
    runner = web.ServerRunner(web.Server(played.answer), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    played.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield played
    await runner.cleanup()


@pytest.fixture
def shop(metadata: Metadata, tmp_path: Path) -> Shop:
    """Return a shop."""
    return Shop(metadata, tmp_path)


@pytest.fixture
async def desk(shop: Shop) -> AsyncIterator[Desk]:
    """Return an entered provider that knows who it is."""
    made = shop.open()
    async with made.provider:
        assert (await made.ask()).failed == {}
        yield made
