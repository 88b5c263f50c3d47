# SPDX-License-Identifier: Apache-2.0
"""Who this Droplet is, asked of its metadata service key by key, again and again, beside everything else.

Keys and forms: docs.digitalocean.com/reference/api/metadata (read 2026-05-05). Never `user-data`, nor
`v1.json`, which contains it: people keep their secrets there. It does not judge any notice.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from spotwatch.clock import Clock
from spotwatch.errors import Malformed, ProviderError, Unavailable
from spotwatch.providers._metadata import MetadataClient
from spotwatch.untrusted import printable

ENDPOINT = "http://169.254.169.254"
ROOT = "/metadata/v1"
MAX_ID = 2**53
"""Beyond it JSON numbers are no longer exact in every reader."""

_RETRY_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 5.0
_ID = re.compile(r"[0-9]{1,16}")
# What a Droplet's name may consist of (DigitalOcean API v2, droplets: "name").
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,253}[A-Za-z0-9])?")
_WORD = re.compile(r"[A-Za-z0-9:_-]{1,255}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What the metadata service says about this Droplet; only the id is certain to be there."""

    droplet_id: int
    hostname: str = ""
    region: str = ""
    tags: tuple[str, ...] = ()
    public_ip: str = ""
    private_ip: str = ""
    public_ipv6: str = ""

    @property
    def addresses(self) -> frozenset[str]:
        """Return all its addresses, as `ipaddress` writes them."""
        given = (self.public_ip, self.private_ip, self.public_ipv6)
        return frozenset(str(ipaddress.ip_address(text)) for text in given if text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Who this Droplet is, as far as anybody has said by now."""

    droplet_id: int | None
    """By configuration, or else by the metadata service; None: not known yet."""
    identity: Identity | None
    """What the metadata service says; None: nothing yet."""
    names: frozenset[str]
    """Names that are its alone, by configuration; case-folded."""

    @property
    def is_whole(self) -> bool:
        """Tell whether a name that is none of ours can be known to be another's."""
        return self.identity is not None and bool(self.identity.hostname)


def parse_id(text: str) -> int:
    """Return the Droplet's id.

    Raises:
        Malformed: it is no number from 1 to 2^53.
    """
    if not _ID.fullmatch(text) or not 1 <= int(text) <= MAX_ID:
        raise Malformed(f"id: expected a number, got {printable(text, 80)!r}", body=text.encode())
    return int(text)


async def ask_identity(client: MetadataClient) -> Identity:
    """Return what the metadata service says now.

    Raises:
        ProviderError: it did not give the id; what else it does not give is empty.
    """
    reply = await client.get(f"{ROOT}/id")
    droplet_id = parse_id(reply.text())
    hostname, region, tags, public_ip, private_ip, public_ipv6 = await asyncio.gather(
        _ask(client, "hostname", _is_name),
        _ask(client, "region", _is_word),
        _ask(client, "tags/", lambda text: all(map(_is_word, text.split()))),
        _ask(client, "interfaces/public/0/ipv4/address", _is_address),
        _ask(client, "interfaces/private/0/ipv4/address", _is_address),
        _ask(client, "interfaces/public/0/ipv6/address", _is_address),
    )
    return Identity(
        droplet_id=droplet_id,
        hostname=hostname,
        region=region,
        tags=tuple(tags.split()),
        public_ip=public_ip,
        private_ip=private_ip,
        public_ipv6=public_ipv6,
    )


class Whoami:
    """Keep asking: every second or so until the id is known, then rarely.

    Args:
        client: open while `run` runs.
        clock: for the pauses.
        refresh_seconds: between two good answers.
        on_change: awaited after each answer that differs from the one before.
    """

    def __init__(
        self,
        client: MetadataClient,
        clock: Clock,
        *,
        refresh_seconds: float,
        on_change: Callable[[], Awaitable[None]],
    ) -> None:
        self._client = client
        self._clock = clock
        self._refresh_seconds = refresh_seconds
        self._on_change = on_change
        self.identity: Identity | None = None
        """The last good answer; an outage does not make us anybody else."""
        self.problem: ProviderError = Unavailable("the metadata service has not been asked yet")
        """Why there is no identity; says nothing once there is one."""
        self.has_asked = asyncio.Event()
        """Set when the first answer, good or bad, is there."""

    async def run(self) -> None:
        """Ask until cancelled."""
        retry_seconds = _RETRY_SECONDS
        while True:
            try:
                found = await ask_identity(self._client)
            except ProviderError as error:
                self.problem = error
                pause = retry_seconds
                retry_seconds = min(2 * retry_seconds, _LONGEST_RETRY_SECONDS)
            else:
                pause, retry_seconds = self._refresh_seconds, _RETRY_SECONDS
                if not found.hostname:
                    # Half an identity: names cannot be compared yet.
                    pause = min(pause, _LONGEST_RETRY_SECONDS)
                    found = self._completed(found)
                if found != self.identity:
                    self.identity = found
                    await self._on_change()
            self.has_asked.set()
            await self._clock.sleep(pause)

    def _completed(self, found: Identity) -> Identity:
        """Return `found`, or what we knew of the same Droplet when that is more."""
        known = self.identity
        return known if known is not None and known.droplet_id == found.droplet_id else found


async def _ask(client: MetadataClient, key: str, is_valid: Callable[[str], bool]) -> str:
    """Return the text of an optional key; empty when it is missing, refused, or of another form."""
    try:
        reply = await client.get(f"{ROOT}/{key}", accept=(200, 404))
        text = reply.text() if reply.status == 200 else ""  # noqa: PLR2004 - HTTP's own number
    except ProviderError:
        return ""
    return text if is_valid(text) else ""


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def _is_word(text: str) -> bool:
    return _WORD.fullmatch(text) is not None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
