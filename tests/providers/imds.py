# SPDX-License-Identifier: Apache-2.0
"""A strict EC2 metadata service on loopback, and a provider in front of it.

A request needs exactly one token header with a token that is valid; all else is answered as a test says.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from spotwatch.clock import Clock
from spotwatch.model import Answer
from spotwatch.providers import Context
from spotwatch.providers.aws import Aws, Config
from spotwatch.testing import FakeClock
from tests.providers.aws_payloads import served
from tests.providers.raw_server import Behaviour, RawServer, Request, body, status

TOKEN_PATH = "/latest/api/token"
_META = "/latest/meta-data"
INSTANCE_ID = f"{_META}/instance-id"
PATHS = {
    "instance-action": f"{_META}/spot/instance-action",
    "termination-time": f"{_META}/spot/termination-time",
    "rebalance": f"{_META}/events/recommendations/rebalance",
    "asg": f"{_META}/autoscaling/target-lifecycle-state",
    "scheduled-events": f"{_META}/events/maintenance/scheduled",
}
TERMINATE = body(served("instance-action-terminate"), headers={"Date": "Sun, 29 Nov 2026 12:00:00 GMT"})


class Imds(RawServer):
    """The service. `shows` maps a signal to its behaviour; what is not in it is 404."""

    def __init__(self, *, ttl_header: str | None = None) -> None:
        super().__init__()
        self.shows: dict[str, Behaviour] = {}
        self.valid: set[str] = set()
        self.given = 0
        self.ttl_header = ttl_header
        self.routes[f"PUT {TOKEN_PATH}"] = self._give_token
        self.routes[INSTANCE_ID] = self._guarded(lambda: body("i-0123456789abcdef0"))
        for signal, path in PATHS.items():
            self.routes[path] = self._guarded(lambda signal=signal: self.shows.get(signal, status(404)))

    def expire(self) -> None:
        """Let no token be valid any more."""
        self.valid.clear()

    @property
    def puts(self) -> int:
        """Return how often a token was asked for."""
        return self.asked(TOKEN_PATH, "PUT")

    async def _give_token(self, request: Request, writer: asyncio.StreamWriter) -> None:
        (ttl,) = request.values("X-aws-ec2-metadata-token-ttl-seconds")
        self.given += 1
        token = f"AQAEA-token-{self.given}=="
        self.valid.add(token)
        headers = {"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": self.ttl_header or ttl}
        await body(token, headers=headers)(request, writer)

    def _guarded(self, behaviour: Any) -> Behaviour:
        async def behave(request: Request, writer: asyncio.StreamWriter) -> None:
            tokens = request.values("X-aws-ec2-metadata-token")
            allowed = len(tokens) == 1 and tokens[0] in self.valid
            await (behaviour() if allowed else status(401))(request, writer)

        return behave


class Hand(random.Random):
    """A random source that says what it is told to."""

    value = 0.0

    def random(self) -> float:
        """Return the set value."""
        return self.value


def make(url: str, clock: Clock | None = None, **settings: Any) -> Aws:
    """Return a provider for the service at `url` on a machine without DMI texts."""
    context = Context(clock=clock or FakeClock(), runtime_dir=Path("/nonexistent"))
    config = Config(endpoint=url, **settings)
    return Aws(config, context, dmi=lambda _name: "", rng=Hand())


@asynccontextmanager
async def polled(imds: Imds, clock: Clock | None = None, **settings: Any) -> AsyncIterator[Aws]:
    """Serve `imds` and yield an entered provider in front of it."""
    async with imds, make(imds.url, clock, **settings) as provider:
        yield provider


def failed_types(answer: Answer) -> dict[str, type]:
    """Return the class of each signal's failure."""
    return {signal: type(error) for signal, error in answer.failed.items()}
