# SPDX-License-Identifier: Apache-2.0
"""How Azure's Scheduled Events are fetched: the slow first request, the two api-versions, the approval.

It does not know what a document means, nor when it is time to ask.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from spotwatch.clock import Clock
from spotwatch.errors import Malformed, ProviderError, Unavailable
from spotwatch.providers._metadata import MetadataClient, Reply

PATH = "/metadata/scheduledevents"
HEADERS = {"Metadata": "true"}
PREVIEW_VERSION = "2024-07-09"
"""Knows SpotRebalanceRecommendation; not every region answers it (Microsoft Learn, "Spot eviction risk")."""
GA_VERSION = "2020-07-01"
PREVIEW_AGAIN_SECONDS = 3600.0
# How long one poll waits for the service to be enabled before it says "not yet".
_PATIENCE_SECONDS = 1.0
_NETWORK_MEND = "Scheduled Events are served to machines in a virtual network: check network and firewall"
_ANSWERED, _NO_SUCH_VERSION, _NOT_FOUND, _GONE = 200, 400, 404, 410


@dataclass(frozen=True, slots=True)
class _First:
    """A request made before the service has ever answered."""

    task: asyncio.Task[Reply]
    asked_monotonic: float


class EventService:
    """The endpoint of Scheduled Events.

    The first request of a machine enables the service and may take two minutes ("Scheduled Events for Linux
    VMs"). It goes on in the background; beside it a second one is renewed every `timeout_seconds`, so that a
    connection that died meanwhile costs seconds.

    Args:
        client: open while this is used.
        clock: times everything but the requests' own limits.
        api_version: empty: the preview where it is answered, the generally available one elsewhere.
        timeout_seconds: for a request once the service has answered.
        first_timeout_seconds: how long "no answer yet" is no failure.
    """

    def __init__(
        self,
        client: MetadataClient,
        clock: Clock,
        *,
        api_version: str,
        timeout_seconds: float,
        first_timeout_seconds: float,
    ) -> None:
        self._client = client
        self._clock = clock
        self._fixed_version = api_version
        self._timeout_seconds = timeout_seconds
        self._first_timeout_seconds = first_timeout_seconds
        self._preview_at_monotonic = 0.0
        self._is_enabled = False
        self._began_monotonic: float | None = None
        self._firsts: list[_First] = []
        self._ending: set[asyncio.Task[object]] = set()

    async def get(self) -> Reply | None:
        """Return the document now in force, or None while the service is being enabled.

        Raises:
            ProviderError: it could not be had.
        """
        if self._is_enabled:
            return await self._request(self._timeout_seconds)
        reply = await self._get_first()
        if reply is not None:
            self._is_enabled = True
            self._end_all()
        return reply

    async def approve(self, event_id: str) -> None:
        """Let an event go ahead for all machines that it lists.

        Raises:
            ProviderError: the service did not accept it.
        """
        await self._client.request(
            "POST",
            PATH,
            headers=HEADERS | {"Content-Type": "application/json"},
            params={"api-version": self._version()},
            body=json.dumps({"StartRequests": [{"EventId": event_id}]}).encode(),
            timeout_seconds=self._timeout_seconds,
        )

    async def close(self) -> None:
        """End what is under way."""
        self._end_all()
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _get_first(self) -> Reply | None:
        now = self._clock.monotonic()
        if self._began_monotonic is None:
            self._began_monotonic = now
        self._ask_first(now)
        pause = asyncio.create_task(self._clock.sleep(_PATIENCE_SECONDS))
        try:
            await asyncio.wait(
                {pause, *(first.task for first in self._firsts)}, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            self._end(pause)
        done = [first for first in self._firsts if first.task.done()]
        self._firsts = [first for first in self._firsts if not first.task.done()]
        has_lasted = self._clock.monotonic() - self._began_monotonic >= self._first_timeout_seconds
        if done:
            good = [first.task.result() for first in done if first.task.exception() is None]
            if not has_lasted:
                # Whoever refuses now may take its two minutes later.
                self._began_monotonic = None
            return good[0] if good else self._explained(done[0].task)
        if not has_lasted:
            return None
        raise Unavailable(
            f"GET {PATH}: no answer within {self._first_timeout_seconds:g} s of the first request",
            mend=_NETWORK_MEND,
        )

    def _explained(self, failed: asyncio.Task[Reply]) -> Reply:
        """Raise what it raised; silence until the limit has the same remedy however it is noticed."""
        try:
            return failed.result()
        except Unavailable as error:
            if not isinstance(error.__cause__, TimeoutError):
                raise
            raise Unavailable(str(error), mend=_NETWORK_MEND) from error

    def _ask_first(self, now: float) -> None:
        """Keep the oldest request, which enables the service, and a fresh one beside it."""
        if self._firsts and now - self._firsts[-1].asked_monotonic < self._timeout_seconds:
            return
        for renewed in self._firsts[1:]:
            self._end(renewed.task)
        task = asyncio.create_task(self._request(self._first_timeout_seconds), name="azure:first")
        self._firsts = [*self._firsts[:1], _First(task, now)]

    async def _request(self, limit: float) -> Reply:
        version = self._version()
        reply = await self._ask(version, limit)
        if reply.status != _ANSWERED and version == PREVIEW_VERSION and not self._fixed_version:
            # At once, so that a poll is not lost to the version.
            version = GA_VERSION
            reply = await self._ask(version, limit)
            if reply.status == _ANSWERED:
                self._preview_at_monotonic = self._clock.monotonic() + PREVIEW_AGAIN_SECONDS
        if reply.status != _ANSWERED:
            raise _refusal(reply.status, version)
        return reply

    async def _ask(self, version: str, limit: float) -> Reply:
        return await self._client.get(
            PATH,
            headers=HEADERS,
            params={"api-version": version},
            timeout_seconds=limit,
            accept=(_ANSWERED, _NO_SUCH_VERSION, _NOT_FOUND, _GONE),
        )

    def _version(self) -> str:
        if self._fixed_version:
            return self._fixed_version
        return PREVIEW_VERSION if self._clock.monotonic() >= self._preview_at_monotonic else GA_VERSION

    def _end_all(self) -> None:
        for first in self._firsts:
            self._end(first.task)
        self._firsts = []

    def _end(self, task: asyncio.Task[object]) -> None:
        if task.done():
            if not task.cancelled():
                task.exception()  # looked at, so that asyncio does not report it as forgotten
            return
        task.cancel()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def _refusal(status: int, version: str) -> ProviderError:
    what = f"GET {PATH} with api-version {version}: HTTP {status}"
    if status == _NO_SUCH_VERSION:
        return Malformed(what, mend="leave api_version empty, or set one that this cloud knows")
    if status == _NOT_FOUND:
        return Unavailable(what, mend=_NETWORK_MEND)
    return Unavailable(what)
