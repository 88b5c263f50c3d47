# SPDX-License-Identifier: Apache-2.0
"""The services that hand over mail, made of their sections: which there are, and what each lets through.

It does not know what a mail says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from spotwatch.mail.inbound import Refused, Service, load
from spotwatch.mail.model import Delivery
from spotwatch.providers import Context
from spotwatch.providers._do_push import UNSYNCED_SECONDS
from spotwatch.received import Received, Verdict

STANDARD = "standard"
"""The service that needs no section: the webhook's secrets are its own."""

CLOCK_DOUBT = "the service's time fits only a clock that is wrong, and this machine's is not set yet"
MEMORY_DOUBT = "it may be a replay from before a restart that lost the memory of what was heard"
PASSING_DOUBTS = frozenset({CLOCK_DOUBT, MEMORY_DOUBT})
"""What may be gone when the service tries again."""


@dataclass(slots=True)
class Door:
    """One service, as it is and as patient as a clock that is not set yet asks for."""

    service: Service
    patient: Service
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def open(self, request: Received, context: Context) -> Delivery | Verdict:
        """Return what one request brings.

        Raises:
            Refused: nothing that one may look at.
        """
        async with self.turn:
            try:
                opened, is_late = await self.service.open(request), False
            except Refused as refused:
                if refused.verdict.result != "replayed" or context.is_clock_synced() is not False:
                    raise
                opened, is_late = await self.patient.open(request), True
        if isinstance(opened, Verdict):
            return opened
        if is_late or _fits_only_an_unset_clock(opened, context):
            opened = replace(opened, doubts=(*opened.doubts, CLOCK_DOUBT))
        # Not every service signs a time, and one on this machine signs by the same clock.
        return replace(opened, is_clock_set=context.is_clock_synced() is not False)


def make_doors(context: Context) -> Mapping[str, Door]:
    """Return the services that are configured, by name.

    Raises:
        ConfigError: a secret is missing, empty or of another form.
    """
    doors = {name: _door(load(name), config, context) for name, config in context.inbound.items()}
    if STANDARD not in doors and context.webhook_secrets:
        kind = load(STANDARD)
        doors[STANDARD] = _door(kind, kind.config_class(), context)
    return doors


def _fits_only_an_unset_clock(delivery: Delivery, context: Context) -> bool:
    """Tell whether a clock that is not set yet may be all that makes a late signature late.

    Some services sign once and repeat for hours, so that their own limit says nothing of our clock.
    """
    if delivery.signed_at is None or context.is_clock_synced() is not False:
        return False
    age_seconds = (context.clock.now() - delivery.signed_at).total_seconds()
    return abs(age_seconds) > context.webhook_tolerance_seconds


def _door(kind: type[Service], config: object, context: Context) -> Door:
    more: dict[str, Any] = {"secrets": context.webhook_secrets} if kind.name == STANDARD else {}
    if (shared := getattr(kind, "shared", None)) is not None:
        # What both have in common, such as keys that they fetch.
        more |= shared(context.clock, context.state_dir)
    make = partial(kind, config, read_secret=context.read_secret, clock=context.clock, **more)
    return Door(
        service=make(tolerance_seconds=context.webhook_tolerance_seconds),
        patient=make(tolerance_seconds=UNSYNCED_SECONDS),
    )
