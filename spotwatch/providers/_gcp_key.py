# SPDX-License-Identifier: Apache-2.0
"""How one metadata key is followed: plain GETs until its value has settled, then hanging GETs.

It knows when to ask and how, what changed, and since when; not what a value means, nor what to do about it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from spotwatch.clock import Clock
from spotwatch.errors import Malformed, ProviderError, Unavailable
from spotwatch.providers._gcp_parse import Reading
from spotwatch.providers._metadata import MetadataClient, Reply

FLAVOR_HEADERS = {"Metadata-Flavor": "Google"}
ROOT = "/computeMetadata/v1/instance"

RETRY_SECONDS = 1.0
"""Between plain GETs, and after a failure: Google's metadata server is made for that, and 30 s may be all."""
LONGEST_RETRY_SECONDS = 5.0
"""Even a server that asks for more (Retry-After) is asked again after this."""
LOOK_SECONDS = 10.0
"""A key silent for this long is asked plainly beside its hanging GET, whose socket may be half open: waiting
for its time limit would take longer than a preemption."""
# A change is believed to last after this many equal answers over this time; hence a withdrawal is confirmed
# in seconds, not in as many hanging GETs.
SETTLED_ANSWERS = 4
SETTLED_SECONDS = 4.0
# How much longer than the server's own limit a hanging GET may take (Google's guest agent: 60 s and 70 s).
HANGING_MARGIN_SECONDS = 10.0


class NotAvailable(Unavailable):
    """The key is not served on this machine; nothing is known, and nothing is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What came of one request."""

    result: Reply | ProviderError
    at: datetime
    was_hanging: bool
    took_seconds: float


class Key:
    """One key: how it is asked, its last value, and since when it has that value.

    Args:
        signal: its name below `instance/`.
        parse: what a value means, given the moment at which it was first seen; raises Malformed.
        client: open while requests are made.
        clock: times everything.
        wait_seconds: the server's limit of a hanging GET.
        params: always part of the query.
        missing: the statuses that mean "no such key here".
        missing_mend: what the user can do about a missing key; empty: many machines lack it, which is no
            failure.
    """

    def __init__(
        self,
        signal: str,
        parse: Callable[[str, datetime], Reading],
        *,
        client: MetadataClient,
        clock: Clock,
        wait_seconds: float,
        params: Mapping[str, str] | None = None,
        missing: tuple[int, ...] = (404,),
        missing_mend: str = "",
    ) -> None:
        self.signal = signal
        self._parse = parse
        self._client = client
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._params = dict(params or {})
        self._missing = missing
        self._missing_mend = missing_mend
        self._value: str | None = None
        self._seen_at: datetime | None = None
        self._etag = ""
        self._is_failing = False
        self._equal_answers = 0
        self._changed_monotonic = 0.0
        self._heard_monotonic = -math.inf
        self._next_monotonic = 0.0

    @property
    def look_in_seconds(self) -> float:
        """Return after how long a plain GET is due whatever else is under way."""
        return self._heard_monotonic + LOOK_SECONDS - self._clock.monotonic()

    async def ask_in_time(self, shorten: float) -> Asked:
        """Wait for this key's turn, then ask in the way that its state calls for.

        Args:
            shorten: 0 to 1, the fraction of the pause to wait, so that machines do not ask in step.
        """
        pause = (self._next_monotonic - self._clock.monotonic()) * shorten
        if pause > 0:
            await self._clock.sleep(pause)
        return await self.ask(hanging=self._is_settled())

    async def ask(self, *, hanging: bool) -> Asked:
        """Ask now; a failure is part of the result."""
        started = self._clock.monotonic()
        try:
            result: Reply | ProviderError = await self._get(hanging=hanging)
        except ProviderError as error:
            result = error
        return Asked(
            result=result,
            at=self._clock.now(),
            was_hanging=hanging,
            took_seconds=self._clock.monotonic() - started,
        )

    def accept(self, asked: Asked) -> tuple[Reading, bool]:
        """Take in what came of a request, plan the next one, and return what it says and whether that is new.

        Raises:
            NotAvailable: this machine has no such key.
            ProviderError: what the request failed with, or Malformed for an unknown value.
        """
        now = self._heard_monotonic = self._clock.monotonic()
        try:
            if isinstance(asked.result, ProviderError):
                raise asked.result
            value = asked.result.text()
            is_new = value != self._value
            seen_at = asked.at if is_new or self._seen_at is None else self._seen_at
            reading = self._parse(value, seen_at)
        except ProviderError as error:
            # What was known stays known: the same value after an outage was first seen before it.
            self._is_failing = True
            self._next_monotonic = now + _pause_after(error)
            raise
        self._is_failing = False
        self._etag = asked.result.headers.get("etag", "")
        self._value, self._seen_at = value, seen_at
        self._equal_answers = 1 if is_new else self._equal_answers + 1
        if is_new:
            self._changed_monotonic = now
        # A hanging GET that comes back at once did not hang: a server that ignores wait_for_change, or a key
        # whose etag changes by itself, must not make us spin.
        has_hung = asked.was_hanging and asked.took_seconds >= RETRY_SECONDS
        self._next_monotonic = now if has_hung and self._is_settled() else now + RETRY_SECONDS
        return reading, is_new

    def _is_settled(self) -> bool:
        """Tell whether it is time for a hanging GET; without an etag there is nothing to hang on."""
        return (
            not self._is_failing
            and bool(self._etag)
            and self._equal_answers >= SETTLED_ANSWERS
            and self._clock.monotonic() - self._changed_monotonic >= SETTLED_SECONDS
        )

    async def _get(self, *, hanging: bool) -> Reply:
        params, limit = dict(self._params), None
        if hanging:
            params |= {
                "wait_for_change": "true",
                "last_etag": self._etag,
                "timeout_sec": str(max(1, round(self._wait_seconds))),
            }
            limit = self._wait_seconds + HANGING_MARGIN_SECONDS
        reply = await self._client.get(
            f"{ROOT}/{self.signal}",
            headers=FLAVOR_HEADERS,
            params=params,
            timeout_seconds=limit,
            accept=(200, *self._missing),
        )
        if reply.status in self._missing:
            message = f"{self.signal}: HTTP {reply.status}, not served here"
            raise (
                Unavailable(message, mend=self._missing_mend) if self._missing_mend else NotAvailable(message)
            )
        return from_google(reply, self.signal)


def from_google(reply: Reply, what: str) -> Reply:
    """Return `reply` if Google's metadata server gave it.

    Raises:
        Malformed: the header that proves it is missing, as from a captive portal's page.
    """
    if reply.headers.get("metadata-flavor") != "Google":
        raise Malformed(
            f"{what}: answer without 'Metadata-Flavor: Google', so not from Google's metadata server",
            body=reply.body,
            mend="something else answers at this address: check GCE_METADATA_HOST and the network's routes",
        )
    return reply


def _pause_after(error: ProviderError) -> float:
    if isinstance(error, NotAvailable):
        return LOOK_SECONDS
    if isinstance(error, Unavailable) and error.retry_after_seconds is not None:
        return min(max(error.retry_after_seconds, RETRY_SECONDS), LONGEST_RETRY_SECONDS)
    return RETRY_SECONDS
