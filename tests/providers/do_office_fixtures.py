# SPDX-License-Identifier: Apache-2.0
"""A town with a name server, and an office in it, for each test that asks for one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.mail import name_server
from tests.mail.making import SIGNER, zone
from tests.providers.do_office import Office, Town


@pytest.fixture
async def town(tmp_path: Path) -> AsyncIterator[Town]:
    """Return a town with a name server that publishes the signer's key."""
    records = dict(SIGNER.records)
    async with name_server.serving(zone(records)) as server:
        yield Town(tmp_path, server, records)


@pytest.fixture
async def office(town: Town) -> AsyncIterator[Office]:
    """Return an entered provider."""
    made = town.open()
    async with made.provider:
        yield made
