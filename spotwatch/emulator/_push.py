# SPDX-License-Identifier: Apache-2.0
"""A relay's part: post DigitalOcean's mail, or a signed message made of it, to the machine.

It serves nothing, and never reads what the receiver says beyond the status.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import aiohttp

from spotwatch.clock import Clock
from spotwatch.emulator._base import PAST_SECONDS
from spotwatch.emulator._mail import Mailer
from spotwatch.emulator.digitalocean import DigitalOcean, decode_secret, sign
from spotwatch.emulator.faults import Faults, Mood, mood
from spotwatch.errors import ConfigError
from spotwatch.model import from_rfc3339, to_rfc3339

TARGET_SECONDS = 7200.0
"""DigitalOcean's target between mail and reclaim (terms of the Spot preview)."""
_TIMEOUT_SECONDS = 10.0
_RETRY_SECONDS = 0.5
_PAGE = "reclaim"


class Relay:
    """Posts the notices of one Droplet.

    Args:
        droplet: whose notices.
        clock: stamps the messages.
        faults: those on `reclaim` change what is told.
        tell: called with the outcome of each post.
        webhook_url: where to, unless a call says otherwise.
        secret: `whsec_…`, unless a call says otherwise.
        mailer: writes the mails that are posted whole; None: messages are made of them.
    """

    def __init__(
        self,
        droplet: DigitalOcean,
        clock: Clock,
        faults: Faults,
        tell: Callable[[str, Mapping[str, Any]], None],
        *,
        webhook_url: str = "",
        secret: str = "",
        mailer: Mailer | None = None,
    ) -> None:
        self._droplet = droplet
        self._clock = clock
        self._faults = faults
        self._tell = tell
        self._url = webhook_url
        self._secret = secret
        self._mailer = mailer
        if secret:
            decode_secret(secret)

    @property
    def is_ready(self) -> bool:
        """Tell whether there is a webhook to post to."""
        return bool(self._url and self._secret)

    async def push(
        self,
        webhook_url: str | None,
        secret: str | None,
        *,
        event: str,
        about: Mapping[str, Any],
        at: datetime | str | None,
        message_id: str | None,
        until_taken: bool,
    ) -> int:
        """Post one message (twice under `duplicate`) and return the last status; 0: a fault withheld it.

        Args:
            webhook_url: None: the relay's own.
            secret: None: the relay's own.
            event: `reclaim` or `cancel`.
            about: `droplet_id` or `name`; neither: this Droplet's id.
            at: when the Droplet goes; text goes out as it is, None leaves it out of a cancel.
            message_id: None: a new one.
            until_taken: post again while nobody answers, or the answer is temporary.

        Raises:
            ConfigError: there is no webhook, or no usable secret.
            aiohttp.ClientError, TimeoutError: nobody took it.
        """
        url = webhook_url or self._url
        key_text = secret or self._secret
        if not url or not key_text:
            raise ConfigError("digitalocean pushes its notice: give webhook_url and secret")
        key = decode_secret(key_text)
        now = self._mood()
        if now.hidden and event == "reclaim":
            self._tell("withheld", {"what": event, "url": url})
            return 0
        content = self._droplet.message(
            event,
            at=self._told(event, at, now),
            droplet_id=about.get("droplet_id"),
            name=about.get("name"),
            mood=now,
        )
        sent_at = self._clock.now() + timedelta(seconds=now.skew_seconds)
        content_type, body = self._written(content, sent_at)
        signed = sign(key, message_id or f"msg_{secrets.token_hex(12)}", int(sent_at.timestamp()), body)
        headers = {"Content-Type": content_type, **signed}
        status = 0
        for _ in range(1 + now.duplicate):
            status = await (_post_until_taken if until_taken else _post)(url, headers, body)
            self._tell("pushed", {"what": event, "url": url, "status": status})
        return status

    def _written(self, content: Mapping[str, Any], sent_at: datetime) -> tuple[str, bytes]:
        """Return type and bytes of what is posted."""
        if self._mailer is None:
            return "application/json", json.dumps(content).encode()
        droplet_id = content.get("droplet_id")
        # DigitalOcean's mails name Droplets by name alone.
        own = self._droplet.hostname if droplet_id == self._droplet.droplet_id else str(droplet_id)
        mail = self._mailer.write(
            content["event"],
            named=content.get("name") or own,
            at=_for_people(content.get("at", "")),
            sent_at=sent_at,
        )
        return "message/rfc822", mail

    def _mood(self) -> Mood:
        active = self._faults.told(_PAGE)
        now = mood(active, _PAGE)
        self._faults.spend(active, _PAGE)
        return now

    def _told(self, event: str, at: datetime | str | None, now: Mood) -> str | None:
        """Return `at` as this mood tells it."""
        if at is None:
            if event != "reclaim":
                return None
            at = self._clock.now() + timedelta(seconds=TARGET_SECONDS)
        if isinstance(at, str):
            return at
        if now.past:
            at = self._clock.now() - timedelta(seconds=PAST_SECONDS)
        return to_rfc3339(at + timedelta(seconds=now.skew_seconds))


def _for_people(at: str) -> str:
    """Return a time as DigitalOcean's mails write it; what is none is left as it is."""
    try:
        return f"{from_rfc3339(at):%Y-%m-%d %H:%M:%S} UTC"
    except ValueError:
        return at


async def _post(url: str, headers: Mapping[str, str], body: bytes) -> int:
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
    async with (
        aiohttp.ClientSession(trust_env=False, timeout=timeout) as session,
        session.post(url, data=body, headers=headers, allow_redirects=False) as response,
    ):
        return response.status


async def _post_until_taken(url: str, headers: Mapping[str, str], body: bytes) -> int:
    """Post until the answer is final, as a relay does that was told 503 or nothing."""
    while True:
        try:
            status = await _post(url, headers, body)
        except (aiohttp.ClientError, TimeoutError):
            status = 503
        if status < 500:  # noqa: PLR2004 - HTTP: 5xx is temporary
            return status
        await asyncio.sleep(_RETRY_SECONDS)
