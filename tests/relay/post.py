# SPDX-License-Identifier: Apache-2.0
"""A relay's receiver with all that stands behind it, and a mailbox in memory.

It holds no test.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from spotwatch.config import Mail, RelayDroplet
from spotwatch.mail.inbound import mailgun
from spotwatch.mail.mailbox import BROADCAST, Address, address_of_name
from spotwatch.mail.mailbox_form import read_letters
from spotwatch.mail.mailbox_writer import MailboxWriter
from spotwatch.providers import Context
from spotwatch.providers._do_mail import make_desk
from spotwatch.providers._do_services import make_doors
from spotwatch.received import Received, Verdict
from spotwatch.relay.fleet import Fleet, List
from spotwatch.relay.outbox import Outbox
from spotwatch.relay.receiving import RelayReceiver
from spotwatch.relay.replays import RelayReplays
from spotwatch.testing import FakeClock
from spotwatch.webhooks import signed_headers
from tests.mail import name_server
from tests.mail.inbound import requests_mailgun
from tests.mail.letters import KEY, MemoryObjects
from tests.mail.making import ACCOUNT, OURS

SECRET = bytes(range(32))
OTHER = 600000001
FLEET = (
    RelayDroplet(id=OURS, names=("spot-trainer-01",)),
    RelayDroplet(id=OTHER, names=("spot-trainer-02",), addresses=("203.0.113.7",)),
)


@dataclass(slots=True)
class Post:
    """A relay's receiver with all that stands behind it, and a mailbox in memory."""

    state_dir: Path
    server: name_server.NameServer
    objects: MemoryObjects = field(default_factory=MemoryObjects)
    clock: FakeClock = field(default_factory=FakeClock)
    counted: Counter[tuple[str, str]] = field(default_factory=Counter)
    is_clock_synced: bool | None = None
    rules: dict[str, Any] = field(default_factory=dict)
    configured: tuple[RelayDroplet, ...] = FLEET
    ask: List | None = None
    sent: int = 0
    receiver: RelayReceiver = field(init=False)
    outbox: Outbox = field(init=False)
    fleet: Fleet = field(init=False)

    def start(self, *, state_dir: Path | None = None) -> None:
        """Make a receiver as a relay that has just started does."""
        state_dir = state_dir or self.state_dir
        context = Context(
            clock=self.clock,
            runtime_dir=state_dir,
            state_dir=state_dir,
            webhook_secrets=(SECRET,),
            mail=Mail(**{"account_addresses": (ACCOUNT,), "resolvers": (self.server.address,)} | self.rules),
            inbound={"mailgun": mailgun.Config(signing_key_files=("new",))},
            read_secret={"new": requests_mailgun.KEY}.__getitem__,
            is_clock_synced=lambda: self.is_clock_synced,
        )
        self.fleet = Fleet(self.configured, self.ask, self.clock, state_dir=state_dir)
        self.outbox = Outbox(MailboxWriter(self.objects, KEY), self.clock, state_dir=state_dir)
        self.receiver = RelayReceiver(
            context,
            make_doors(context),
            make_desk(context),
            fleet=self.fleet,
            outbox=self.outbox,
            replays=RelayReplays(state_dir, now=self.clock.now(), tolerance_seconds=300.0),
            count=lambda service, result: self.counted.update([(service, result)]),
        )

    async def mail(self, raw: bytes, *, token: str = "", **more: Any) -> Verdict:
        """Hand over a mail as Mailgun does."""
        self.sent += 1
        stamp = int(self.clock.now().timestamp())
        fields = requests_mailgun.signed(timestamp=stamp, token=token or f"{self.sent:050}", **more)
        return await self.receiver.receive(requests_mailgun.form(("body-mime", raw), *fields.items()))

    async def notice(
        self,
        row: dict[str, Any] | bytes,
        *,
        secret: bytes = SECRET,
        webhook_id: str = "",
        age_seconds: int = 0,
    ) -> Verdict:
        """Post a signed notice."""
        self.sent += 1
        body = row if isinstance(row, bytes) else json.dumps(row).encode()
        stamp = int(self.clock.now().timestamp()) - age_seconds
        headers = signed_headers(secret, webhook_id or f"msg_{self.sent}", stamp, body)
        return await self.receiver.receive(Received(headers=headers, body=body))

    def ago(self, **time: float) -> datetime:
        """Return a moment, to the second, as mails have it."""
        return self.clock.now().replace(microsecond=0) - timedelta(**time)

    async def letters(self) -> dict[str, list[str]]:
        """Send what waits, and return event and evidence of the letters in the mailbox, by object."""
        await self.outbox.send()
        held = {}
        for to in (Address(OURS), Address(OTHER), BROADCAST, address_of_name("spot-trainer-03")):
            raw = self.objects.objects.get(to.key)
            if raw is not None:
                opened = read_letters(raw, [KEY.public], to=to, now=self.clock.now())
                assert opened.problem is None
                held[to.key] = [f"{one.event} {one.evidence}" for one in opened.letters]
        return held
