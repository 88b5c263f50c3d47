# SPDX-License-Identifier: Apache-2.0
"""Our own listener with the `standard` service behind it, for whoever posts mail to it.

It holds no test, and judges no mail.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from spotwatch.clock import SystemClock
from spotwatch.mail.inbound import Refused
from spotwatch.mail.inbound.standard import Config, Standard
from spotwatch.mail.model import Delivery
from spotwatch.received import Received, Verdict
from spotwatch.server import WebhookServer

PATH = "/webhook/digitalocean/standard"


@dataclass
class Hearer:
    """Keeps each mail whose signature holds, and answers as it is told."""

    service: Standard
    status: int = 202
    headers: Mapping[str, str] = field(default_factory=dict)
    heard: list[Delivery] = field(default_factory=list)
    url: str = ""

    @property
    def mails(self) -> list[bytes]:
        """Return the raw mails."""
        return [delivery.raw for delivery in self.heard]

    async def receive(self, request: Received) -> Verdict:
        """Open the request, and keep the mail."""
        try:
            delivery = await self.service.open(request)
        except Refused as refused:
            return refused.verdict
        assert isinstance(delivery, Delivery)
        self.heard.append(delivery)
        return Verdict(status=self.status, result="accepted", headers=self.headers)


@asynccontextmanager
async def listening(secret: bytes) -> AsyncIterator[Hearer]:
    """Listen on loopback for mail that `secret` has signed."""
    service = Standard(
        Config(), read_secret=str, clock=SystemClock(), tolerance_seconds=300, secrets=(secret,)
    )
    hearer = Hearer(service)
    server = WebhookServer(
        "127.0.0.1:0",
        receivers={"digitalocean": hearer},
        on_request=lambda provider, result: None,
        say=lambda line: None,
    )
    await server.start()
    hearer.url = f"http://127.0.0.1:{server.port}{PATH}"
    try:
        yield hearer
    finally:
        await server.close()
