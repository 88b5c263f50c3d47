# SPDX-License-Identifier: Apache-2.0
"""A provider that hears mail by real services, with keys from a real name server on loopback.

It holds no test.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from spotwatch.config import Mail
from spotwatch.mail.inbound import forwardemail, mailgun
from spotwatch.model import Answer, Notice
from spotwatch.providers import Context, Received, Verdict
from spotwatch.providers.digitalocean import Config, DigitalOcean
from spotwatch.testing import FakeClock
from spotwatch.webhooks import signed_headers
from tests.mail import name_server
from tests.mail.inbound import requests_forwardemail, requests_mailgun
from tests.mail.making import ACCOUNT, OURS

SECRET = bytes(range(32))
NOWHERE = "http://127.0.0.1:1"
UNPROVEN = Verdict(status=202, result="unproven")
ACCEPTED = Verdict(status=202, result="accepted")
DUPLICATE = Verdict(status=200, result="duplicate")


@dataclass(slots=True)
class Office:
    """A provider that hears mail, and the services that hand it over."""

    provider: DigitalOcean
    clock: FakeClock
    sent: int = 0

    async def mailgun(self, raw: bytes, *, token: str = "", signed: datetime | None = None) -> Verdict:
        """Hand over a mail as Mailgun does, whose signature does not cover it."""
        self.sent += 1
        fields = requests_mailgun.signed(
            timestamp=int((signed or self.clock.now()).timestamp()), token=token or f"{self.sent:050}"
        )
        return await self.provider.receive(requests_mailgun.form(("body-mime", raw), *fields.items()))

    async def forwardemail(self, raw: bytes) -> Verdict:
        """Hand over a mail as ForwardEmail does, whose signature covers it."""
        row = requests_forwardemail.row(raw=raw.decode())
        return await self.provider.receive(requests_forwardemail.request(row))

    async def standard(self, raw: bytes, *, signed: datetime | None = None) -> Verdict:
        """Hand over a mail as a script of one's own does."""
        self.sent += 1
        stamp = int((signed or self.clock.now()).timestamp())
        headers = signed_headers(SECRET, f"msg_{self.sent}", stamp, raw) | {"content-type": "message/rfc822"}
        return await self.provider.receive(Received(headers=headers, body=raw, path="standard"))

    def ago(self, **time: float) -> datetime:
        """Return a moment, to the second, as mails have it."""
        return self.clock.now().replace(microsecond=0) - timedelta(**time)

    async def ask(self) -> Answer:
        """Poll."""
        return await self.provider.notices()

    async def only(self) -> Notice:
        """Poll, and return the one notice."""
        [notice] = (await self.ask()).notices
        return notice

    async def evidence(self) -> list[str]:
        """Poll, and return what the notices in force are worth."""
        return [notice.evidence.value for notice in (await self.ask()).notices]


@dataclass(slots=True)
class Town:
    """Makes offices, each a life of the daemon on the same state directory."""

    state_dir: Path
    server: name_server.NameServer
    records: dict[str, str]
    clock: FakeClock = field(default_factory=FakeClock)
    is_clock_synced: bool | None = None

    def open(self, *, trust_relay: bool = False, config: Config | None = None, **rules: Any) -> Office:
        """Return a provider that is not entered yet."""
        secrets = {"new": requests_mailgun.KEY, "fe": requests_forwardemail.KEY}
        given = {"account_addresses": (ACCOUNT,), "resolvers": (self.server.address,)} | rules
        context = Context(
            clock=self.clock,
            runtime_dir=self.state_dir,
            state_dir=self.state_dir,
            webhook_secrets=(SECRET,),
            trust_relay=trust_relay,
            mail=Mail(**given),
            inbound={
                "mailgun": mailgun.Config(signing_key_files=("new",)),
                "forwardemail": forwardemail.Config(key_files=("fe",)),
            },
            read_secret=secrets.__getitem__,
            is_clock_synced=lambda: self.is_clock_synced,
        )
        config = config or Config(endpoint=NOWHERE, droplet_id=OURS, names=("spot-trainer-01",))
        return Office(DigitalOcean(config, context), self.clock)
