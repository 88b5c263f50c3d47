# SPDX-License-Identifier: Apache-2.0
"""Azure: what Scheduled Events say about eviction, termination, reboot and maintenance of this machine.

Notice at least: Preempt 30 s and that only on a best-effort basis, Redeploy 10 min, Reboot and Freeze 15 min,
Terminate 5 to 15 min as its owner set it (Microsoft Learn, "Scheduled Events for Linux VMs", read 2026-11).
Microsoft recommends polling once per second; an event just disappears when it is over or cancelled.

It never uses the Azure Resource Manager, needs no credentials, and approves an event only when told to.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Self

from spotwatch.errors import Denied, Malformed, ProviderError, Unavailable
from spotwatch.model import Answer, Notice
from spotwatch.providers import Context
from spotwatch.providers._azure_events import HEADERS, EventService
from spotwatch.providers._azure_parse import NAME, SIGNAL, Known, parse
from spotwatch.providers._metadata import MetadataClient, Reply, read_dmi

_DEFAULT_ENDPOINT = "http://169.254.169.254"
# The digits spell "MSFT AZURE VM"; cloud-init and Microsoft's own troubleshooting pages decide by it. Hyper-V
# elsewhere has the vendor "Microsoft Corporation" too, but not this tag.
_CHASSIS_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"
_COMPUTE_PATH = "/metadata/instance/compute"
_COMPUTE_VERSION = "2021-02-01"
_DETECT_SECONDS = 1.5
# Asked beside the events until it is known once; a notice must not wait for it.
_NAME_SECONDS = 2.0
_LONGEST_RETRY_SECONDS = 5.0
# Of a Preempt, the shortest ("Scheduled Events for Linux VMs").
_WINDOW_SECONDS = 30.0
# Jitter only ever shortens a pause, to this part of it at most.
_PAUSE_SHORTEST = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of the `azure` provider."""

    endpoint: str = ""
    """Empty: http://169.254.169.254."""
    interval_seconds: float = 1.0
    timeout_seconds: float = 5.0
    first_timeout_seconds: float = 130.0
    """How long the first request, which enables the service, may take without being a failure."""
    api_version: str = ""
    """Empty: 2024-07-09, and 2020-07-01 where that is not known."""
    resource_name: str = ""
    """This machine's name in `Resources`; empty: `compute.name` of the instance metadata."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work.

        Raises:
            ValueError: says which, and what is wanted.
        """
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise ValueError(f"endpoint {self.endpoint!r} has no scheme; write http://HOST[:PORT]")
        if not 0.2 <= self.interval_seconds <= 60:  # noqa: PLR2004 - five requests a second is IMDS's limit
            raise ValueError(f"interval_seconds {self.interval_seconds:g} is out of range; use 0.2 to 60")
        if not 0 < self.timeout_seconds <= 30:  # noqa: PLR2004 - longer than a Preempt's notice
            raise ValueError(f"timeout_seconds {self.timeout_seconds:g} is out of range; use above 0 to 30")
        if not self.timeout_seconds <= self.first_timeout_seconds <= 600:  # noqa: PLR2004 - 2 min documented
            raise ValueError(
                f"first_timeout_seconds {self.first_timeout_seconds:g} is out of range; "
                "use timeout_seconds to 600"
            )
        if self.api_version and not re.fullmatch(r"\d{4}-\d{2}-\d{2}", self.api_version):
            raise ValueError(
                f"api_version {self.api_version!r} is no date; use YYYY-MM-DD, or leave it empty"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compute:
    name: str
    vm_id: str


class Azure:
    """Notices from Azure's Scheduled Events.

    While the machine's own name is unknown no event can be attributed: the signal counts as failed, and an
    event that lists a single machine is handed on as weak evidence.
    """

    name: ClassVar[str] = NAME
    config_class: ClassVar[type] = Config
    absence_withdraws: ClassVar[bool] = True

    def __init__(self, config: Config, context: Context) -> None:
        self._config = config
        self._clock = context.clock
        self._endpoint = config.endpoint.rstrip("/") or _DEFAULT_ENDPOINT
        self._client = MetadataClient(self._endpoint, timeout_seconds=config.timeout_seconds)
        self._service = EventService(
            self._client,
            context.clock,
            api_version=config.api_version,
            timeout_seconds=config.timeout_seconds,
            first_timeout_seconds=config.first_timeout_seconds,
        )
        self._random = random.Random()  # noqa: S311 - jitter, not a secret
        self._compute: _Compute | None = None
        self._known: Mapping[str, Known] = {}
        self._unattributed: object = None
        self._next_monotonic = 0.0

    async def __aenter__(self) -> Self:
        """Open the connection pool."""
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the first request if it still waits, and close all connections."""
        await self._service.close()
        await self._client.__aexit__(kind, error, trace)

    @property
    def signals(self) -> tuple[str, ...]:
        """Return the one document that carries all events."""
        return (SIGNAL,)

    @property
    def interval_seconds(self) -> float:
        """Return the time between polls."""
        return self._config.interval_seconds

    @property
    def window_seconds(self) -> float:
        """Return the 30 s before a Preempt."""
        return _WINDOW_SECONDS

    async def detect(self) -> bool:
        """Tell by DMI, else by one answer with a `vmId`, whether this is an Azure machine."""
        if read_dmi("chassis_asset_tag") == _CHASSIS_ASSET_TAG:
            return True
        async with MetadataClient(self._endpoint, timeout_seconds=_DETECT_SECONDS) as client:
            try:
                await _get_compute(client)
            except ProviderError:
                return False
        return True

    async def identity(self) -> str:
        """Return `compute.vmId`; asked once.

        Raises:
            ProviderError: the metadata service did not say.
        """
        return (await self._get_compute()).vm_id

    async def notices(self) -> Answer:
        """Return all events that list this machine."""
        interval = self._config.interval_seconds * self._random.uniform(_PAUSE_SHORTEST, 1.0)
        self._next_monotonic = self._clock.monotonic() + interval
        document, me = await asyncio.gather(self._get_document(), self._get_name())
        error = document if isinstance(document, ProviderError) else None
        if error is None and isinstance(me, ProviderError):
            error = me
        self._slow_down(error)
        server_at = document.server_at if isinstance(document, Reply) else None
        found: tuple[Notice, ...] = ()
        try:
            found, problem = self._read(document, None if isinstance(me, ProviderError) else me)
            error = error or problem
        except Malformed as malformed:
            error = malformed
        if error is not None:
            return Answer(notices=found, failed={SIGNAL: error}, server_at=server_at)
        if document is None:
            return Answer()
        return Answer(notices=found, answered=frozenset({SIGNAL}), server_at=server_at)

    async def wait(self) -> None:
        """Return one interval after the last poll began; later only if the service asked for it."""
        await self._clock.sleep(max(0.0, self._next_monotonic - self._clock.monotonic()))

    async def confirm(self, notice: Notice) -> None:
        """Approve the event behind `notice`, so that Azure need not wait for its time.

        Raises:
            Denied: the event concerns other machines too, or is not Azure's own; nothing was sent.
            ProviderError: it is no longer listed, or the service did not accept the approval.
        """
        event = next((one for one in self._known.values() if one.notice_id == notice.id), None)
        if notice.drill or notice.provider != NAME:
            raise Denied(f"{notice.id} is not approved: it is no event of Azure's")
        if event is None:
            raise Unavailable(f"{notice.id} is not approved: the last document does not list it")
        if not (notice.sole_resource and event.sole_resource):
            raise Denied(f"{notice.id} is not approved: it concerns other machines too")
        if not event.spelled:
            raise Denied(f"{notice.id} is not approved: it came without an EventId")
        await self._service.approve(event.spelled)

    def _read(self, document: object, me: str | None) -> tuple[tuple[Notice, ...], ProviderError | None]:
        """Return what `document` says, or what an earlier one said that could not be attributed then."""
        if isinstance(document, Reply):
            content = document.json()
        elif me is not None and self._unattributed is not None:
            content = self._unattributed
        else:
            return (), None
        parsed = parse(content, me=me, known=self._known, seen_at=self._clock.now())
        # An event that could not be read this time keeps its id.
        self._known = parsed.known if parsed.error is None else {**self._known, **parsed.known}
        self._unattributed = content if me is None else None
        return parsed.notices, parsed.error

    async def _get_document(self) -> Reply | ProviderError | None:
        try:
            return await self._service.get()
        except ProviderError as error:
            return error

    async def _get_name(self) -> str | ProviderError:
        if self._config.resource_name:
            return self._config.resource_name.strip()
        try:
            return (await self._get_compute()).name
        except ProviderError as error:
            error.mend = error.mend or "set resource_name to this machine's name as Azure lists it"
            return error

    async def _get_compute(self) -> _Compute:
        if self._compute is None:
            self._compute = await _get_compute(self._client)
        return self._compute

    def _slow_down(self, error: ProviderError | None) -> None:
        if isinstance(error, Unavailable) and error.retry_after_seconds is not None:
            pause = min(error.retry_after_seconds, _LONGEST_RETRY_SECONDS)
            self._next_monotonic = max(self._next_monotonic, self._clock.monotonic() + pause)


async def _get_compute(client: MetadataClient) -> _Compute:
    """Return how the metadata service names this machine.

    `compute.name` is what `Resources` lists, also in scale sets (`pool_0`); the host name (`pool000000`) is
    not (MicrosoftDocs/azure-docs issue 62522).
    """
    limit = min(client.timeout_seconds, _NAME_SECONDS)
    params = {"api-version": _COMPUTE_VERSION}
    reply = await client.get(_COMPUTE_PATH, headers=HEADERS, params=params, timeout_seconds=limit)
    document = reply.json()
    values = [document.get(key) if isinstance(document, dict) else None for key in ("name", "vmId")]
    name, vm_id = (value.strip() if isinstance(value, str) else "" for value in values)
    if not name or not vm_id:
        raise Malformed(f"GET {_COMPUTE_PATH}: expected texts 'name' and 'vmId'", body=reply.body)
    return _Compute(name=name, vm_id=vm_id)


PROVIDER = Azure
