# SPDX-License-Identifier: Apache-2.0
"""A flood of mail into the provider, one in a hundred genuine, and what it did to notices, memory and loop.

It holds no test.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from spotwatch.clock import SystemClock
from spotwatch.config import Mail
from spotwatch.mail.inbound import mailgun
from spotwatch.model import Notice
from spotwatch.providers import Context, Received, Verdict
from spotwatch.providers.digitalocean import Config, DigitalOcean
from spotwatch.webhooks import signed_headers
from tests.lag import Lag, watching
from tests.mail import name_server
from tests.mail.inbound import requests_mailgun
from tests.mail.making import ACCOUNT, OURS, SIGNER, genuine, plain, zone
from tests.mail.signing import Signer

SECRET = bytes(range(32))
STRANGER = bytes(range(100, 132))
GENUINE_SHARE = 100
_PEERS = 16
"""How many post at the same time; the listener lets in 64."""


@dataclass(slots=True)
class Outcome:
    """What a flood did."""

    sent: int = 0
    genuine: int = 0
    verdicts: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    """How often each kind of mail got which answer."""
    strong: list[Notice] = field(default_factory=list)
    """Every proven notice as it was, one after the other."""
    proven: int = 0
    """Mails in the memory of what is proven."""
    earliest: datetime | None = None
    """The earliest time in a genuine mail."""
    lag: Lag | None = None
    grown_bytes: int = 0


def resident_bytes() -> int:
    """Return the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Forger:
    """Makes mails that must not stop anybody; signatures are slow to make, so that some serve many times."""

    def __init__(self, chance: random.Random, now: datetime) -> None:
        self._chance = chance
        self._sent_at = now - timedelta(minutes=2)
        soon = now + timedelta(minutes=3)
        self._soon = soon
        evil = Signer(domain="digitalocean.com.evil.example", owner="evil")
        theirs = genuine(sent_at=self._sent_at, whom="else-02", message_id="<theirs@digitalocean.com>")
        liar = "support@digitalocean.com"
        self._signed = [
            Signer(owner="forger").sign(plain(sent_at=self._sent_at, at=soon)),
            Signer(owner="forger").sign(plain(sent_at=self._sent_at, event="cancel")),
            evil.sign(plain(sent_at=self._sent_at, at=soon, sender=f'"{liar}" <x@{evil.domain}>')),
            evil.sign(plain(sent_at=self._sent_at, at=soon, sender=liar)),
            f"Subject: Your Spot Droplet {OURS} will be reclaimed\r\n".encode() + theirs,
            theirs.replace(b"else-02", b"spot-trainer-01"),
            SIGNER.sign(plain(sent_at=self._sent_at, whom="else-02"), length=40)
            + f"\r\nYour Spot Droplet {OURS} will be reclaimed at {soon:%Y-%m-%d %H:%M} UTC.\r\n".encode(),
            genuine(sent_at=self._sent_at, at=soon, to="somebody@else.example"),
            genuine(sent_at=self._sent_at - timedelta(days=2), at=soon),
        ]

    def make(self) -> bytes:
        """Return one more of them."""
        pick = self._chance.random()
        if pick < 0.5:
            return self._chance.choice(self._signed)
        number = self._chance.getrandbits(48)
        event = self._chance.choice(["reclaim", "reclaim", "cancel"])
        raw = plain(
            sent_at=self._sent_at, event=event, at=self._soon, message_id=f"<{number:x}@forged.example>"
        )
        if pick < 0.6:
            # A name to ask DNS for that nobody has ever asked for.
            value = base64.b64encode(number.to_bytes(6)).decode()
            head = (
                f"DKIM-Signature: v=1; a=rsa-sha256; d=digitalocean.com; s=x{number:x}; c=relaxed/relaxed; "
            )
            raw = f"{head}h=from:to:subject:date:content-type; bh={value}; b={value}\r\n".encode() + raw
        if pick > 0.95:
            raw += self._chance.choice([b"<p>spot", b"=\r\n", b"\xff\xfe ", b"12:00 UTC "]) * 15_000
        return raw


class Flood:
    """Posts mails to a provider in random order.

    Args:
        provider: entered.
        count: of mails.
        chance: decides about everything.
    """

    def __init__(self, provider: DigitalOcean, count: int, chance: random.Random) -> None:
        self._provider = provider
        self._chance = chance
        self._now = SystemClock().now().replace(microsecond=0)
        self._forger = Forger(chance, self._now)
        self._kinds = ["genuine"] * (count // GENUINE_SHARE)
        rest = ["forged by a relay", "forged by a script", "genuine by a stranger", "forged by a stranger"]
        self._kinds += [chance.choice(rest) for _ in range(count - len(self._kinds))]
        chance.shuffle(self._kinds)
        soon = self._now + timedelta(minutes=4)
        self._stolen = genuine(sent_at=self._now, at=soon, message_id="<stolen@digitalocean.com>")
        self._genuine = [self._make_genuine(number) for number in range(count // GENUINE_SHARE)]
        self.outcome = Outcome(genuine=count // GENUINE_SHARE)

    async def run(self) -> Outcome:
        """Post all, and return what became of it."""
        outcome = self.outcome
        numbers: Iterator[int] = iter(range(len(self._kinds)))
        settled_at = len(self._kinds) // 4
        settled_bytes = 0

        async def peer() -> None:
            nonlocal settled_bytes
            for number in numbers:
                await self._post(number)
                outcome.sent += 1
                if outcome.sent == settled_at:
                    settled_bytes = resident_bytes()
                await self._look()

        async with watching() as outcome.lag, asyncio.TaskGroup() as group:
            for _ in range(_PEERS):
                group.create_task(peer())
        outcome.grown_bytes = resident_bytes() - settled_bytes
        outcome.proven = len(self._provider._memory.proven) // 2
        return outcome

    async def _post(self, number: int) -> None:
        kind = self._kinds[number]
        if kind == "genuine":
            at, raw = self._genuine.pop()
            earliest = self.outcome.earliest
            self.outcome.earliest = at if earliest is None else min(at, earliest)
            post: Callable[[], Received] = self._chance.choice(
                [lambda: self._by_mailgun(raw, number), lambda: self._by_script(raw, number, SECRET)]
            )
        elif kind == "forged by a relay":
            raw = self._forger.make()
            post = lambda: self._by_mailgun(raw, number)  # noqa: E731 - the same name for every kind
        elif kind == "forged by a script":
            raw = self._forger.make()
            post = lambda: self._by_script(raw, number, SECRET)  # noqa: E731 - as above
        else:
            raw = self._stolen if kind.startswith("genuine") else self._forger.make()
            post = lambda: self._by_script(raw, number, STRANGER)  # noqa: E731 - as above
        verdict = await self._provider.receive(post())
        while kind == "genuine" and verdict.status == 503:
            # As every service does.
            verdict = await self._provider.receive(post())
        self._count(kind, verdict)

    def _make_genuine(self, number: int) -> tuple[datetime, bytes]:
        """Return a mail and its time; made beforehand, for signing takes longer than all that is measured."""
        at = self._now.replace(second=0) + timedelta(minutes=self._chance.randint(60, 110))
        return at, genuine(sent_at=self._now, at=at, message_id=f"<{number}@digitalocean.com>")

    async def _look(self) -> None:
        """Keep every change of the proven notice, as a poll would see it."""
        found = [one for one in (await self._provider.notices()).notices if one.evidence.value == "strong"]
        if found and found[-1:] != self.outcome.strong[-1:]:
            self.outcome.strong += found

    def _count(self, kind: str, verdict: Verdict) -> None:
        self.outcome.verdicts[(kind, verdict.status, verdict.result)] += 1

    def _by_mailgun(self, raw: bytes, number: int) -> Received:
        fields = requests_mailgun.signed(timestamp=int(time.time()), token=f"{number:050}")
        return requests_mailgun.form(("body-mime", raw), *fields.items())

    def _by_script(self, raw: bytes, number: int, secret: bytes) -> Received:
        made = signed_headers(secret, f"msg_{number}", int(time.time()), raw)
        return Received(headers=made | {"content-type": "message/rfc822"}, body=raw, path="standard")


async def flood(count: int, state_dir: Path, *, seed: int) -> Outcome:
    """Return what `count` mails in an order by `seed` do to a provider that keeps its state."""
    async with name_server.serving(zone(SIGNER.records)) as server:
        context = Context(
            clock=SystemClock(),
            runtime_dir=state_dir,
            state_dir=state_dir,
            webhook_secrets=(SECRET,),
            mail=Mail(account_addresses=(ACCOUNT,), resolvers=(server.address,)),
            inbound={"mailgun": mailgun.Config(signing_key_files=("new",))},
            read_secret={"new": requests_mailgun.KEY}.__getitem__,
        )
        config = Config(endpoint="http://127.0.0.1:1", droplet_id=OURS, names=("spot-trainer-01",))
        async with DigitalOcean(config, context) as provider:
            return await Flood(provider, count, random.Random(seed)).run()
