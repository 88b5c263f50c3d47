# SPDX-License-Identifier: Apache-2.0
"""Google Cloud: what the metadata server says about preemption and host maintenance.

Google sets `instance/preempted` to TRUE when it takes a Spot VM, about 30 s before power goes; with
`scheduling.preemptionNoticeDuration` up to 120 s earlier (Compute Engine API v1, revision 20261106). No key
carries that time, hence `notice_seconds`. `maintenance-event` announces host maintenance a minute (migration)
to an hour (termination, GPU machines) ahead; `upcoming-maintenance` days ahead, on some machine types only.

It does not use the Compute Engine API, needs no credentials, and never resolves a name.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Self

from spotwatch.errors import Malformed, ProviderError
from spotwatch.model import Answer, Notice
from spotwatch.providers import Context
from spotwatch.providers._gcp_key import (
    FLAVOR_HEADERS,
    ROOT,
    Asked,
    Key,
    NotAvailable,
    from_google,
)
from spotwatch.providers._gcp_parse import (
    MAINTENANCE_EVENT,
    NAME,
    PREEMPTED,
    SOFT_OFF_SECONDS,
    UPCOMING_MAINTENANCE,
    Reading,
    parse_maintenance_event,
    parse_preempted,
    parse_upcoming_maintenance,
)
from spotwatch.providers._metadata import MetadataClient, Reply, read_dmi

# metadata.google.internal, by its address: a resolver that is down must not hide a notice.
_DEFAULT_ENDPOINT = "http://169.254.169.254"
# Google's own clients decide by these (google-cloud-go, compute/metadata).
_PRODUCT_NAMES = frozenset({"Google", "Google Compute Engine"})
_DETECT_SECONDS = 1.5
# Jitter only ever shortens a pause, to this part of it at most.
_PAUSE_SHORTEST = 0.75
_GKE_MEND = "GKE hides this key from pods: run with hostNetwork: true, or without Workload Identity"
# Machine types without a maintenance schedule; 503 also where one could exist but nothing is planned, against
# the guide (observed by the authors of Scylla Doctor). Either way nothing is known, which is not "nothing".
_NO_SCHEDULE = (404, 503)
# 0: Compute Engine's default; 120: the one other value of preemptionNoticeDuration in use.
_NOTICE_SECONDS = (0, 120)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of the `gcp` provider."""

    endpoint: str = ""
    """Empty: `$GCE_METADATA_HOST` (host or host:port), else http://169.254.169.254."""
    timeout_seconds: float = 2.0
    """For a plain request."""
    wait_seconds: float = 60.0
    """How long the server may hold a hanging GET; the connection is given up 10 s later."""
    notice_seconds: float = 0
    """The instance's `scheduling.preemptionNoticeDuration`: 0 or 120."""
    maintenance_notice_seconds: float = 3600.0
    """How long before a termination for host maintenance `maintenance-event` says so."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work.

        Raises:
            ValueError: says which, and what is wanted.
        """
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise ValueError(f"endpoint {self.endpoint!r} has no scheme; write http://HOST[:PORT]")
        if not 0 < self.timeout_seconds <= 30:  # noqa: PLR2004 - longer than any preemption's notice
            raise ValueError(f"timeout_seconds {self.timeout_seconds:g} is out of range; use above 0 to 30")
        if not 1 <= self.wait_seconds <= 600:  # noqa: PLR2004 - a connection that long is not to be trusted
            raise ValueError(f"wait_seconds {self.wait_seconds:g} is out of range; use 1 to 600")
        if self.notice_seconds not in _NOTICE_SECONDS:
            raise ValueError(
                f"notice_seconds {self.notice_seconds:g} is not what Compute Engine offers; use 0, or 120 "
                "where the instance has scheduling.preemptionNoticeDuration"
            )
        if not 0 <= self.maintenance_notice_seconds <= 86400:  # noqa: PLR2004 - a day
            raise ValueError(
                f"maintenance_notice_seconds {self.maintenance_notice_seconds:g} is out of range; "
                "use 0 to 86400"
            )


def endpoint_of(config: Config, environment: Mapping[str, str]) -> str:
    """Return the address of the metadata server."""
    if config.endpoint:
        return config.endpoint.rstrip("/")
    host = environment.get("GCE_METADATA_HOST", "").strip().rstrip("/")
    if not host:
        return _DEFAULT_ENDPOINT
    return host if host.startswith(("http://", "https://")) else f"http://{host}"


class Gcp:
    """Notices from Google's metadata server; each key is followed on its own.

    `notices()` after a `wait()` that returned reports what has been answered since; without one it asks for
    all keys now.
    """

    name: ClassVar[str] = NAME
    config_class: ClassVar[type] = Config
    absence_withdraws: ClassVar[bool] = True

    def __init__(self, config: Config, context: Context) -> None:
        self._config = config
        self._clock = context.clock
        self._endpoint = endpoint_of(config, os.environ)
        self._client = MetadataClient(self._endpoint, timeout_seconds=config.timeout_seconds)
        self._random = random.Random()  # noqa: S311 - jitter, not a secret
        self._instance_id = ""
        self._pending: dict[str, asyncio.Task[Asked]] = {}
        self._ending: set[asyncio.Task[Any]] = set()
        preempted = partial(parse_preempted, notice_seconds=config.notice_seconds)
        maintenance = partial(parse_maintenance_event, notice_seconds=config.maintenance_notice_seconds)
        keys = (
            self._key(PREEMPTED, preempted, missing_mend=_GKE_MEND),
            self._key(MAINTENANCE_EVENT, maintenance),
            self._key(
                UPCOMING_MAINTENANCE, parse_upcoming_maintenance, params={"alt": "json"}, missing=_NO_SCHEDULE
            ),
        )
        self._keys = {key.signal: key for key in keys}

    def _key(self, signal: str, parse: Callable[[str, datetime], Reading], **options: Any) -> Key:
        return Key(
            signal,
            parse,
            client=self._client,
            clock=self._clock,
            wait_seconds=self._config.wait_seconds,
            **options,
        )

    async def __aenter__(self) -> Self:
        """Open the connection pool."""
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all hanging GETs and close their sockets."""
        for signal in list(self._pending):
            self._give_up(signal)
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self._client.__aexit__(kind, error, trace)

    @property
    def signals(self) -> tuple[str, ...]:
        """Return the keys watched."""
        return tuple(self._keys)

    @property
    def interval_seconds(self) -> float:
        """Return the longest time between two answers of a key while nothing changes."""
        return self._config.wait_seconds

    @property
    def window_seconds(self) -> float:
        """Return the configured notice and the 30 s until power goes."""
        return self._config.notice_seconds + SOFT_OFF_SECONDS

    async def detect(self) -> bool:
        """Tell by DMI, else by the header of one answer, whether this is a Google machine."""
        if read_dmi("product_name") in _PRODUCT_NAMES:
            return True
        async with MetadataClient(self._endpoint, timeout_seconds=_DETECT_SECONDS) as client:
            try:
                from_google(await client.get(f"{ROOT}/id", headers=FLAVOR_HEADERS), "detection")
            except ProviderError:
                return False
        return True

    async def identity(self) -> str:
        """Return the numeric id of the instance; asked once.

        Raises:
            ProviderError: the metadata server did not say.
        """
        if not self._instance_id:
            reply = from_google(await self._client.get(f"{ROOT}/id", headers=FLAVOR_HEADERS), "instance/id")
            text = reply.text()
            if not (text.isascii() and text.isdigit()):
                raise Malformed(f"instance/id: expected a number, got {text[:80]!r}", body=reply.body)
            self._instance_id = text
        return self._instance_id

    async def notices(self) -> Answer:
        """Return what the keys that have been answered since the last call say now."""
        asked = self._harvest()
        # Nobody waited (the first call, or one that must not wait), or a key has been silent for long.
        plain = [
            key
            for signal, key in self._keys.items()
            if not asked or (signal not in asked and key.look_in_seconds <= 0)
        ]
        looks = await asyncio.gather(*(key.ask(hanging=False) for key in plain))
        found: list[Notice] = []
        failed: dict[str, ProviderError] = {}
        answered: set[str] = set()
        server_at: datetime | None = None
        for signal, one in (asked | {k.signal: look for k, look in zip(plain, looks, strict=True)}).items():
            if isinstance(one.result, Reply):
                server_at = one.result.server_at or server_at
            try:
                reading, is_new = self._keys[signal].accept(one)
            except ProviderError as error:
                self._give_up(signal)
                if not isinstance(error, NotAvailable):
                    failed[signal] = error
                continue
            if is_new:
                self._give_up(signal)
            if reading.notice is not None:
                found.append(reading.notice)
            if reading.error is not None:
                failed[signal] = reading.error
            else:
                answered.add(signal)
        return Answer(notices=tuple(found), answered=frozenset(answered), failed=failed, server_at=server_at)

    async def wait(self) -> None:
        """Return when any key has been answered, or has been silent for 10 s."""
        for signal, key in self._keys.items():
            if signal not in self._pending:
                shorten = self._random.uniform(_PAUSE_SHORTEST, 1.0)
                self._pending[signal] = asyncio.create_task(key.ask_in_time(shorten), name=f"{NAME}:{signal}")
        look_in = min(key.look_in_seconds for key in self._keys.values())
        look = asyncio.create_task(self._clock.sleep(max(0.0, look_in)), name=f"{NAME}:look")
        try:
            # Not cancelled with this call: a hanging GET is never asked twice.
            await asyncio.wait({*self._pending.values(), look}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._end(look)

    def _harvest(self) -> dict[str, Asked]:
        done = {signal: task for signal, task in self._pending.items() if task.done()}
        for signal in done:
            del self._pending[signal]
        return {signal: task.result() for signal, task in done.items()}

    def _give_up(self, signal: str) -> None:
        """End a request under way that a plain GET has outrun, or whose server no longer answers those."""
        if signal in self._pending:
            self._end(self._pending.pop(signal))

    def _end(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        if not task.done():
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


PROVIDER = Gcp
