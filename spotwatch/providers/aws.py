# SPDX-License-Identifier: Apache-2.0
"""Amazon EC2: spot interruption, rebalance, Auto Scaling and scheduled maintenance, from instance metadata.

What EC2 promises: `instance-action` appears two minutes before a spot instance is terminated or stopped, on a
best-effort basis, and at once when it hibernates; nothing appears for an instance that its owner terminates.
A rebalance recommendation is a sign of risk without a time. A target state `Terminated` is all that Auto
Scaling says here. Scheduled events come days ahead. 404 means none on each path. (Amazon EC2 user guide,
"Spot Instance interruption notices", read 2026; other pages are named where they are read.)

It calls no AWS API and needs no credentials. Capacity Block ends and other EventBridge events are not in the
metadata and so not seen.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from http import HTTPStatus
from types import TracebackType
from typing import ClassVar, Self

from spotwatch.errors import Malformed, ProviderError, Unavailable
from spotwatch.model import Answer, Notice
from spotwatch.providers import Context
from spotwatch.providers._aws_events import SCHEDULED_EVENTS
from spotwatch.providers._aws_fields import Parsed
from spotwatch.providers._aws_imds import Imds, request_token
from spotwatch.providers._aws_machine import Config, endpoint_of, is_ec2, read_environment
from spotwatch.providers._aws_parse import (
    ASG,
    INSTANCE_ACTION,
    REBALANCE,
    TERMINATION_TIME,
    WINDOW_SECONDS,
    parse,
)
from spotwatch.providers._metadata import MetadataClient, read_dmi

__all__ = ["PROVIDER", "Aws", "Config", "parse"]

_META = "/latest/meta-data"
_INSTANCE_ID_PATH = f"{_META}/instance-id"
_PATHS: Mapping[str, str] = {
    INSTANCE_ACTION: f"{_META}/spot/instance-action",
    TERMINATION_TIME: f"{_META}/spot/termination-time",
    REBALANCE: f"{_META}/events/recommendations/rebalance",
    ASG: f"{_META}/autoscaling/target-lifecycle-state",
    SCHEDULED_EVENTS: f"{_META}/events/maintenance/scheduled",
}
# AWS recommends to look every 5 s. instance-action is asked in each poll: there, 5 s are training lost.
_EVERY_SECONDS: Mapping[str, float] = {
    TERMINATION_TIME: 5.0,
    REBALANCE: 5.0,
    ASG: 5.0,
    SCHEDULED_EVENTS: 30.0,
}
_RETRY_SECONDS = 5.0  # a rarely asked signal that failed is asked again after this
_SLOWEST_SECONDS = 5.0  # the longest pause that a server's Retry-After may cause
_DETECT_SECONDS = 1.5
_JITTER = 0.1  # of a pause; it only shortens, so that a fleet started together spreads
_BACK_OFF_AFTER = 3  # polls in a row without any answer


_NOTHING = Parsed()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heard:
    """What asking one signal gave."""

    parsed: Parsed = _NOTHING
    error: ProviderError | None = None
    server_at: datetime | None = None


class Aws:
    """One EC2 instance's notices.

    Args:
        config: the section `provider.aws`.
        context: what is known of the daemon.
        dmi: reads one DMI text of the machine.
        rng: for the jitter.

    Raises:
        ConfigError: the endpoint that the environment names is no URL.
    """

    name: ClassVar[str] = "aws"
    config_class: ClassVar[type] = Config
    absence_withdraws: ClassVar[bool] = True

    def __init__(
        self,
        config: Config,
        context: Context,
        *,
        dmi: Callable[[str], str] = read_dmi,
        rng: random.Random | None = None,
    ) -> None:
        self._config = config
        self._clock = context.clock
        self._environment = read_environment(os.environ)
        self._dmi = dmi
        self._rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        self._client = MetadataClient(
            endpoint_of(config, self._environment), timeout_seconds=config.timeout_seconds
        )
        self._imds = Imds(
            self._client,
            self._clock,
            ttl_seconds=config.token_ttl_seconds,
            allow_v1=config.allow_imdsv1 and not self._environment.is_v1_disabled,
            is_container=self._environment.is_container,
        )
        self._identity = ""
        self._due_at = dict.fromkeys(_PATHS, -math.inf)
        self._polled_at: float | None = None
        self._pause_seconds = config.interval_seconds
        self._silent_polls = 0
        self._legacy: tuple[Notice, ...] = ()
        self._is_legacy_spoken_for = False

    async def __aenter__(self) -> Self:
        """Open the HTTP session."""
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the HTTP session."""
        await self._client.__aexit__(kind, error, trace)

    @property
    def signals(self) -> tuple[str, ...]:
        """Return the five signals watched."""
        return tuple(_PATHS)

    @property
    def interval_seconds(self) -> float:
        """Return the time between polls of instance-action, in seconds."""
        return self._config.interval_seconds

    @property
    def window_seconds(self) -> float:
        """Return the two minutes before a stop or termination ("Spot Instance interruption notices")."""
        return WINDOW_SECONDS

    async def detect(self) -> bool:
        """Tell whether this is an EC2 instance: DMI, else whether a token is given within 1.5 s.

        `AWS_EC2_METADATA_DISABLED=true` means no.
        """
        if self._environment.is_disabled:
            return False
        if is_ec2(self._dmi):
            return True
        async with MetadataClient(self._client.base_url, timeout_seconds=_DETECT_SECONDS) as client:
            try:
                await request_token(client, self._config.token_ttl_seconds, timeout_seconds=_DETECT_SECONDS)
            except ProviderError:
                return False
            return True

    async def identity(self) -> str:
        """Return the instance id, asked once.

        Raises:
            ProviderError: EC2 did not say.
        """
        if not self._identity:
            until = asyncio.get_running_loop().time() + self._config.timeout_seconds
            reply = await self._imds.get(_INSTANCE_ID_PATH, until=until)
            text = reply.text()
            if re.fullmatch(r"[A-Za-z0-9-]{1,64}", text) is None:
                raise Malformed(f"instance-id: HTTP {reply.status}, {text[:40]!r} is no id", body=reply.body)
            self._identity = text
        return self._identity

    async def notices(self) -> Answer:
        """Ask all signals that are due, at the same time, within one time limit.

        A list of events with an unreadable item fails its signal, and its other notices hold all the same.
        """
        polled_at = self._polled_at = self._clock.boot()
        soon = polled_at + self._config.interval_seconds / 2
        heard = await self._ask([signal for signal in _PATHS if self._due_at[signal] <= soon])
        for signal, one in heard.items():
            if signal in _EVERY_SECONDS:
                self._due_at[signal] = polled_at + _next_seconds(_EVERY_SECONDS[signal], one.error)
        self._set_pause(heard)
        failed = {signal: one.error for signal, one in heard.items() if one.error is not None}
        return Answer(
            notices=self._combined(heard),
            answered=frozenset(heard) - frozenset(failed),
            failed=failed,
            server_at=next((one.server_at for one in heard.values() if one.server_at is not None), None),
        )

    async def wait(self) -> None:
        """Return an interval after the last poll began; a little later when IMDS is silent or throttles."""
        began_at = self._clock.boot() if self._polled_at is None else self._polled_at
        pause = self._pause_seconds * (1 - _JITTER * self._rng.random())
        await self._clock.sleep(max(0.0, began_at + pause - self._clock.boot()))

    async def _ask(self, signals: Iterable[str]) -> dict[str, _Heard]:
        until = asyncio.get_running_loop().time() + self._config.timeout_seconds
        try:
            await self._imds.ready(until=until)
        except ProviderError as error:
            return {signal: _Heard(error=error) for signal in signals}
        async with asyncio.TaskGroup() as group:
            tasks = {signal: group.create_task(self._ask_one(signal, until)) for signal in signals}
        return {signal: task.result() for signal, task in tasks.items()}

    async def _ask_one(self, signal: str, until: float) -> _Heard:
        try:
            reply = await self._imds.get(_PATHS[signal], until=until)
        except ProviderError as error:
            return _Heard(error=error)
        if reply.status != HTTPStatus.OK:
            return _Heard(server_at=reply.server_at)
        parsed = parse(signal, reply.body, seen_at=self._clock.now())
        return _Heard(parsed=parsed, error=parsed.problem, server_at=reply.server_at)

    def _combined(self, heard: Mapping[str, _Heard]) -> tuple[Notice, ...]:
        """Return all notices, each id once.

        `termination-time` repeats what `instance-action` says of a termination, so it counts only where the
        latter has nothing to say. It is asked less often, so what it said holds until it is asked again:
        a notice that came and went between two questions would be withdrawn and raised for ever. Once
        `instance-action` has spoken, it alone says when the notice is withdrawn: an old time that lingers,
        or cannot be asked for, must not keep it in force.
        """
        legacy = heard.get(TERMINATION_TIME)
        if legacy is not None and legacy.error is None:
            self._legacy = legacy.parsed.notices
            if not self._legacy:
                self._is_legacy_spoken_for = False
        if (action := heard.get(INSTANCE_ACTION)) is not None and action.parsed.notices:
            self._is_legacy_spoken_for = True
        found = [n for signal, one in heard.items() if signal != TERMINATION_TIME for n in one.parsed.notices]
        ids = {notice.id for notice in found}
        now = self._clock.now()
        if not self._is_legacy_spoken_for:
            found += [replace(notice, seen_at=now) for notice in self._legacy if notice.id not in ids]
        return tuple(found)

    def _set_pause(self, heard: Mapping[str, _Heard]) -> None:
        interval = self._config.interval_seconds
        is_silent = all(isinstance(one.error, Unavailable) for one in heard.values())
        self._silent_polls = self._silent_polls + 1 if is_silent else 0
        back_off = 2 * interval if self._silent_polls >= _BACK_OFF_AFTER else interval
        self._pause_seconds = max(back_off, _wish_seconds(heard[INSTANCE_ACTION].error))


def _next_seconds(every: float, error: ProviderError | None) -> float:
    """Return how long after a poll the same signal is due again."""
    return every if error is None else max(min(every, _RETRY_SECONDS), _wish_seconds(error))


def _wish_seconds(error: ProviderError | None) -> float:
    """Return what the server's Retry-After asks for, as far as it is granted."""
    wish = error.retry_after_seconds if isinstance(error, Unavailable) else None
    return min(wish or 0.0, _SLOWEST_SECONDS)


PROVIDER = Aws
