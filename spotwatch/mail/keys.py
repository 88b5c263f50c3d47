# SPDX-License-Identifier: Apache-2.0
"""The keys of DKIM as DNS publishes them: asked for under a time limit, and remembered.

DNS that is down in the two hours that matter must not cost a proof, so a key once seen serves for a week.
It reads no key, and knows neither mail nor domain. DNSSEC is left to the name servers that are asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol

from spotwatch.clock import Clock
from spotwatch.mail.extra import require
from spotwatch.masking import escape

LIMIT_SECONDS = 3.0
"""For all names of a mail together; they are asked for at the same time."""
MAX_NAMES = 5
"""Asked for a mail; RFC 6376 (section 6.1) lets a verifier limit the signatures that it tries."""
MAX_REMEMBERED = 256
MAX_KEY_BYTES = 4096
"""A record with an RSA key of 8192 bits takes 1400."""

_HOUR = 3600.0
_DAY = 24 * _HOUR
_MISSING_SECONDS = 60.0
# So that a flood of mail waits for name servers that are down once, not once a mail.
_PAUSE_SECONDS = 10.0
_STALE_SECONDS = 7 * _DAY
# One try at one name server; the limit has room for two more.
_TRY_SECONDS = 1.0
# What passes unfragmented everywhere (dnsflagday.net/2020); longer answers come by TCP.
_UDP_BYTES = 1232


class KeyState(StrEnum):
    """What became of a question for a key."""

    FOUND = "found"
    MISSING = "missing"
    """DNS answered that there is none."""
    NO_ANSWER = "no answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAnswer:
    """What DNS says at the name of a key."""

    state: KeyState
    text: str = ""
    """The TXT record, its strings joined; empty unless found."""
    why: str = ""
    """For people: why there is none, or that it is an old one; what is foreign in it is escaped."""
    ttl_seconds: float = 0.0
    """How long DNS allows it to be remembered."""


class Resolver(Protocol):
    """Asks DNS."""

    async def resolve(self, name: str) -> KeyAnswer:
        """Return what DNS says at `name`, an absolute name without its last dot; DNS raises nothing."""


@dataclass(frozen=True, slots=True)
class _Entry:
    answer: KeyAnswer
    fresh_until: float
    usable_until: float


class KeyCache:
    """Asks once, and remembers: a key for an hour to a day, and seven days where DNS is down.

    Args:
        resolver: asks DNS.
        clock: its boot clock, which no correction of the time moves.
    """

    def __init__(self, resolver: Resolver, clock: Clock) -> None:
        self._resolver = resolver
        self._clock = clock
        self._entries: dict[str, _Entry] = {}

    async def fetch(self, names: Iterable[str]) -> dict[str, KeyAnswer]:
        """Return an answer for each of the first five different `names`, within three seconds."""
        wanted = tuple(dict.fromkeys(names))[:MAX_NAMES]
        async with asyncio.TaskGroup() as group:
            tasks = {name: group.create_task(self._answer(name)) for name in wanted}
        return {name: task.result() for name, task in tasks.items()}

    async def _answer(self, name: str) -> KeyAnswer:
        entry = self._entries.get(name)
        if entry is not None and self._clock.boot() < entry.fresh_until:
            return entry.answer
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                answer = await self._resolver.resolve(name)
        except TimeoutError:
            why = f"no answer from DNS within {LIMIT_SECONDS:g} s"
            answer = KeyAnswer(state=KeyState.NO_ANSWER, why=why)
        return self._remember(name, answer)

    def _remember(self, name: str, answer: KeyAnswer) -> KeyAnswer:
        now = self._clock.boot()
        # What another mail may have learned meanwhile counts too.
        known = self._entries.get(name)
        if answer.state is KeyState.FOUND:
            entry = _Entry(answer, now + min(max(answer.ttl_seconds, _HOUR), _DAY), now + _STALE_SECONDS)
        elif answer.state is KeyState.MISSING:
            entry = _Entry(answer, now + _MISSING_SECONDS, 0.0)
        elif known is not None and now < known.usable_until:
            old = replace(known.answer, why=f"remembered, for DNS does not answer now: {answer.why}")
            entry = _Entry(old, now + _PAUSE_SECONDS, known.usable_until)
        else:
            entry = _Entry(answer, now + _PAUSE_SECONDS, 0.0)
        if name not in self._entries and len(self._entries) >= MAX_REMEMBERED:
            del self._entries[min(self._entries, key=self._worth)]
        self._entries[name] = entry
        return entry.answer

    def _worth(self, name: str) -> tuple[float, float]:
        """Return what to forget by, least first: mails can name any number of keys that are missing."""
        entry = self._entries[name]
        return entry.usable_until, entry.fresh_until


class SystemResolver:
    """Asks name servers, by UDP and where an answer is too long by TCP.

    Args:
        resolvers: `ADDRESS` or `ADDRESS:PORT` each; none: those of this machine, looked up for each question,
            because a machine that starts may learn them later than we do.
        resolv_conf: where this machine's are written down.

    Raises:
        ConfigError: dnspython is not installed.
    """

    def __init__(self, resolvers: Sequence[str] = (), *, resolv_conf: str = "/etc/resolv.conf") -> None:
        # Here, not with the first mail: importing it holds up the loop for a tenth of a second.
        require("dns.asyncresolver")
        self._dns = require("dns")
        self._resolv_conf = resolv_conf
        self._servers = [self._dns.nameserver.Do53Nameserver(*_address(text)) for text in resolvers]

    async def resolve(self, name: str) -> KeyAnswer:
        """Return what DNS says at `name`, an absolute name without its last dot, within three seconds."""
        dns = self._dns
        try:
            answer = await self._client().resolve(f"{name}.", "TXT")
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return KeyAnswer(state=KeyState.MISSING, why="DNS has no such key")
        # ValueError: dnspython's for a resolv.conf that is no text, or names a server by no address.
        except (dns.exception.DNSException, OSError, ValueError) as error:
            return KeyAnswer(state=KeyState.NO_ANSWER, why=f"{type(error).__name__}: {escape(str(error))}")
        return _key(
            [b"".join(record.strings) for record in answer.rrset],
            ttl_seconds=float(answer.chaining_result.minimum_ttl),
        )

    def _client(self) -> Any:
        resolver = self._dns.asyncresolver.Resolver
        if self._servers:
            client = resolver(configure=False)
            client.nameservers = list(self._servers)
        else:
            client = resolver(filename=self._resolv_conf)
        client.lifetime = LIMIT_SECONDS
        client.timeout = _TRY_SECONDS
        client.use_edns(0, 0, _UDP_BYTES)
        return client


def _key(texts: Sequence[bytes], *, ttl_seconds: float) -> KeyAnswer:
    """Return the one key among the TXT records at its name, which may hold other things too."""
    if len(texts) > 1:
        texts = [text for text in texts if text.startswith(b"v=DKIM1")]
    if len(texts) != 1:
        return KeyAnswer(state=KeyState.MISSING, why=f"DNS has {len(texts)} keys there, not one")
    (text,) = texts
    if len(text) > MAX_KEY_BYTES:
        why = f"a key of {len(text)} bytes, more than the {MAX_KEY_BYTES} that are read"
        return KeyAnswer(state=KeyState.NO_ANSWER, why=why)
    return KeyAnswer(state=KeyState.FOUND, text=text.decode("utf-8", "replace"), ttl_seconds=ttl_seconds)


def _address(text: str) -> tuple[str, int]:
    """Return host and port; an IPv6 address without brackets has no port."""
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):
        host, port = text, "53"
    return host.strip("[]"), int(port)
