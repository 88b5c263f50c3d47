# SPDX-License-Identifier: Apache-2.0
"""How a service is made in a test, and where the requests of each are found: `requests_<name>.py`.

Such a module has `config` (an instance of the service's own), `SECRETS` (file name to text), `good()` and
`tampered()`, and `more(clock)` where its class takes more than the others; what holds for every service is
tested over all of them by name.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from spotwatch.mail import inbound
from spotwatch.mail.inbound import Refused, Service
from spotwatch.mail.model import Delivery
from spotwatch.received import Received, Verdict
from tests.mail.inbound.still import Still

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
TOLERANCE_SECONDS = 300.0
MAIL = (
    b"From: DigitalOcean <support@digitalocean.com>\r\n"
    b"To: me@example.com\r\n"
    b"Subject: Your Spot Droplet will be reclaimed\r\n"
    b"Date: Sun, 29 Nov 2026 11:59:00 +0000\r\n"
    b"Message-ID: <one@digitalocean.com>\r\n"
    b"Content-Type: text/plain; charset=utf-8\r\n"
    b"\r\n"
    b"Hello,\r\n\r\nDroplet spot-trainer-01 goes at 2026-11-29 14:00 UTC.\r\n"
)
"""Seven bits, so that it comes through services that hand it over as text."""


class Requests(Protocol):
    """What a module `requests_<name>` has."""

    config: Any
    SECRETS: Mapping[str, str]

    def good(self) -> Received:
        """Return a request with MAIL, signed at NOW."""

    def tampered(self) -> list[tuple[str, Received]]:
        """Return requests that are not authentic, each with what was done to it."""


@dataclass(frozen=True, slots=True)
class Bench:
    """One service and its requests."""

    name: str
    requests: Requests
    clock: Still
    service: Service


def bench(name: str, *, config: Any = None, secrets: Mapping[str, str] | None = None) -> Bench:
    """Return the service `name` at NOW, set up as its requests want it unless told otherwise."""
    requests: Any = importlib.import_module(f"tests.mail.inbound.requests_{name}")
    known = requests.SECRETS if secrets is None else secrets
    clock = Still(NOW)
    service = inbound.load(name)(
        requests.config if config is None else config,
        read_secret=known.__getitem__,
        clock=clock,
        tolerance_seconds=TOLERANCE_SECONDS,
        **getattr(requests, "more", lambda clock: {})(clock),
    )
    return Bench(name, requests, clock, service)


async def deliver(service: Service, request: Received) -> Delivery:
    """Open a request that must hand over a mail."""
    opened = await service.open(request)
    assert isinstance(opened, Delivery), opened
    return opened


async def refusal(service: Service, request: Received) -> Verdict:
    """Open a request that must be refused, and return what the service is answered."""
    try:
        opened = await service.open(request)
    except Refused as refused:
        return refused.verdict
    raise AssertionError(f"not refused: {opened}")
