# SPDX-License-Identifier: Apache-2.0
"""Mail by real services into the provider: what it becomes, what it is answered, and what counts once.

Keys come from a real name server on loopback. It does not test what a service signs or what words mean.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spotwatch.config import Mail
from spotwatch.errors import ConfigError, Unavailable
from spotwatch.mail.inbound import forwardemail, mailgun
from spotwatch.model import Answer, Evidence, Notice
from spotwatch.providers import Context, Received, Verdict
from spotwatch.providers.digitalocean import Config, DigitalOcean
from spotwatch.testing import FakeClock
from spotwatch.webhooks import signed_headers
from tests.mail import name_server
from tests.mail.inbound import requests_forwardemail, requests_mailgun
from tests.mail.making import ACCOUNT, OURS, SIGNER, forged, genuine, plain, zone

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


@pytest.fixture
async def town(tmp_path: Path) -> AsyncIterator[Town]:
    """Return a town with a name server that publishes the signer's key."""
    records = dict(SIGNER.records)
    async with name_server.serving(zone(records)) as server:
        yield Town(tmp_path, server, records)


@pytest.fixture
async def office(town: Town) -> AsyncIterator[Office]:
    """Return an entered provider."""
    made = town.open()
    async with made.provider:
        yield made


async def test_a_genuine_mail_is_a_strong_notice_with_its_time(office: Office) -> None:
    """By any service that hands over the original, whatever the service itself signs."""
    sent = office.ago(minutes=5)
    assert await office.mailgun(genuine(sent_at=sent)) == ACCEPTED
    notice = await office.only()
    assert (notice.evidence, notice.signal) == (Evidence.STRONG, "webhook")
    assert notice.deadline == sent.replace(second=0) + timedelta(hours=2)
    assert notice.issued_at == sent


@pytest.mark.parametrize("make", [plain, forged])
@pytest.mark.parametrize("by", ["mailgun", "forwardemail", "standard"])
async def test_a_mail_without_proof_may_only_flush(
    office: Office, make: Callable[..., bytes], by: str
) -> None:
    """A signature of the service says who posts, not who wrote."""
    assert await getattr(office, by)(make(sent_at=office.ago(minutes=5))) == UNPROVEN
    assert await office.evidence() == ["weak"]


async def test_a_trusted_relay_proves_what_its_signature_covers(town: Town) -> None:
    """Only where it covers the mail, and never against a DKIM signature that fails."""
    office = town.open(trust_relay=True)
    async with office.provider:
        sent = office.ago(minutes=5)
        assert await office.mailgun(plain(sent_at=sent, message_id="<a@x>")) == UNPROVEN
        assert await office.standard(forged(sent_at=sent, message_id="<b@x>")) == DUPLICATE
        assert await office.evidence() == ["weak"]
        assert await office.standard(plain(sent_at=sent, message_id="<c@x>")) == ACCEPTED
        assert await office.evidence() == ["strong", "weak"]


@pytest.mark.hostile(6)
@pytest.mark.parametrize("path", ["mailgum", "mailgun/raw", "mailgun/mime/x", "sendgrid", "../mailgun", "."])
async def test_a_service_that_is_not_set_up_is_404(office: Office, path: str) -> None:
    """What is not configured does not exist."""
    assert (await office.provider.receive(Received(headers={}, body=b"", path=path))).status == 404


@pytest.mark.hostile(12)
async def test_the_same_request_is_one_notice(office: Office) -> None:
    """Also when it comes many times at once."""
    raw = genuine(sent_at=office.ago(minutes=5))
    verdicts = await asyncio.gather(*(office.mailgun(raw, token="a" * 50) for _ in range(20)))
    assert {verdict.status for verdict in verdicts} == {200, 202}
    assert sum(verdict == ACCEPTED for verdict in verdicts) == 1
    assert await office.evidence() == ["strong"]


@pytest.mark.hostile(13)
@pytest.mark.parametrize("make", [plain, genuine])
async def test_a_token_is_good_for_one_mail(office: Office, make: Callable[..., bytes]) -> None:
    """With another mail under it the service is told to give up, whatever the first one was worth."""
    sent = office.ago(minutes=5)
    await office.mailgun(make(sent_at=sent), token="a" * 50)
    before = await office.ask()
    other = await office.mailgun(make(sent_at=sent, message_id="<other@x>", at=sent), token="a" * 50)
    assert other == Verdict(status=406, result="replayed")
    assert (await office.ask()).notices == before.notices


@pytest.mark.hostile(14)
@pytest.mark.parametrize("make", [plain, genuine])
async def test_a_replay_after_a_restart_is_known(town: Town, make: Callable[..., bytes]) -> None:
    """What has had its effect is on disk, also what was worth little."""
    first, stamp = town.open(), town.clock.now()
    raw = make(sent_at=first.ago(minutes=5))
    async with first.provider:
        await first.mailgun(raw, token="a" * 50, signed=stamp)
        before = await first.ask()
    second = town.open()
    async with second.provider:
        assert (await second.ask()).notices == before.notices
        assert await second.mailgun(raw, token="a" * 50, signed=stamp) == DUPLICATE
        changed = await second.mailgun(raw + b"more\r\n", token="a" * 50, signed=stamp)
        assert changed == Verdict(status=406, result="replayed")


@pytest.mark.hostile(14, 70)
async def test_what_a_copied_disk_remembers_was_another_s(town: Town) -> None:
    """A mail that names both Droplets is new to the second one."""
    first = town.open()
    raw = genuine(sent_at=first.ago(minutes=5), whom=f"{OURS} and Droplet {OURS + 1}")
    async with first.provider:
        assert await first.forwardemail(raw) == ACCEPTED
    second = town.open(config=Config(endpoint=NOWHERE, droplet_id=OURS + 1))
    async with second.provider:
        assert await second.forwardemail(raw) == ACCEPTED


@pytest.mark.hostile(14)
async def test_a_mail_is_remembered_for_as_long_as_it_could_count(town: Town) -> None:
    """Sent again after hours by whoever has a copy, by a service that signs no time, it is still known."""
    office = town.open(max_age_seconds=86400.0)
    async with office.provider:
        raw = genuine(sent_at=office.ago(minutes=5))
        assert await office.forwardemail(raw) == ACCEPTED
        office.clock.wall_offset_seconds += 23 * 3600
        assert await office.evidence() == []
        assert await office.mailgun(raw) == DUPLICATE
        assert await office.evidence() == []


@pytest.mark.hostile(46)
async def test_two_services_with_the_same_mail_are_one_event(office: Office) -> None:
    """It is known by its Message-ID, and by its content where it has none."""
    sent = office.ago(minutes=5)
    assert await office.mailgun(genuine(sent_at=sent)) == ACCEPTED
    assert await office.forwardemail(genuine(sent_at=sent)) == DUPLICATE
    assert await office.evidence() == ["strong"]
    nameless = plain(sent_at=sent, message_id="", whom="spot-trainer-01")
    assert await office.standard(nameless) == UNPROVEN
    assert await office.forwardemail(nameless) == DUPLICATE


@pytest.mark.hostile(37)
async def test_a_forged_copy_that_comes_first_does_not_hide_the_genuine_mail(office: Office) -> None:
    """Both are called the same; only the one that is proven counts as proven."""
    sent = office.ago(minutes=5)
    assert await office.standard(forged(sent_at=sent, at=sent + timedelta(minutes=9))) == UNPROVEN
    assert await office.mailgun(genuine(sent_at=sent)) == ACCEPTED
    strong, weak = (await office.ask()).notices
    assert (strong.evidence, weak.evidence) == (Evidence.STRONG, Evidence.WEAK)
    assert strong.deadline == sent.replace(second=0) + timedelta(hours=2)
    assert await office.standard(forged(sent_at=sent)) == DUPLICATE


@pytest.mark.hostile(41)
async def test_without_dns_it_flushes_and_the_same_request_may_stop_later(town: Town) -> None:
    """503 asks the service to come again, and nothing of the first try counts against the second."""
    town.records.clear()
    down = town.open(resolvers=("127.0.0.1:1",))
    stamp = town.clock.now()
    raw = genuine(sent_at=down.ago(minutes=5))
    async with down.provider:
        verdict = await down.mailgun(raw, token="a" * 50, signed=stamp)
        assert verdict.status == 503
        assert await down.evidence() == ["weak"]
    town.records.update(SIGNER.records)
    up = town.open()
    async with up.provider:
        assert await up.mailgun(raw, token="a" * 50, signed=stamp) == ACCEPTED
        assert await up.evidence() == ["strong", "weak"]


@pytest.mark.hostile(48)
async def test_a_cancel_by_mail_ends_the_notice_and_a_late_copy_of_it_opens_none(office: Office) -> None:
    """Order is by the signed date."""
    sent = office.ago(minutes=9)
    await office.mailgun(genuine(sent_at=sent))
    notice = await office.only()
    cancel = genuine(event="cancel", sent_at=office.ago(minutes=5), message_id="<two@x>")
    assert await office.mailgun(cancel) == ACCEPTED
    answer = await office.ask()
    assert answer.notices == ()
    assert answer.cancelled == {notice.id}
    reminder = genuine(sent_at=office.ago(minutes=7), message_id="<three@x>")
    assert await office.mailgun(reminder) == DUPLICATE
    assert (await office.ask()).notices == ()


@pytest.mark.hostile(47)
async def test_a_mail_that_comes_hours_late_flushes_at_once(office: Office) -> None:
    """Its time is past, and it is older than a proof may be: in force now, for an hour, and never a stop."""
    assert await office.mailgun(genuine(sent_at=office.ago(hours=3, minutes=5))) == UNPROVEN
    notice = await office.only()
    assert notice.evidence is Evidence.WEAK
    assert notice.deadline is not None
    assert notice.deadline < office.clock.now()
    office.clock.wall_offset_seconds += 3700
    assert await office.evidence() == []


@pytest.mark.hostile(52)
async def test_a_mail_that_names_nobody_may_only_flush(town: Town) -> None:
    """However well it is proven; unless this is the account's only Droplet."""
    office = town.open()
    async with office.provider:
        assert await office.mailgun(genuine(sent_at=office.ago(minutes=5), whom="")) == ACCEPTED
        assert await office.evidence() == ["weak"]
    alone = town.open(single_droplet_account=True)
    async with alone.provider:
        raw = genuine(sent_at=alone.ago(minutes=5), whom="")
        assert await alone.mailgun(raw, token="b" * 50) == ACCEPTED
        assert await alone.evidence() == ["strong", "weak"]


@pytest.mark.parametrize(
    ("names", "status", "result"), [(("spot-trainer-01",), 200, "not_mine"), ((), 503, "pending")]
)
async def test_a_mail_about_another_droplet_is_not_ours(
    town: Town, names: tuple[str, ...], status: int, result: str
) -> None:
    """Where it is not known yet what this one is called, it waits instead."""
    office = town.open(config=Config(endpoint=NOWHERE, droplet_id=OURS, names=names))
    async with office.provider:
        raw = genuine(sent_at=office.ago(minutes=5), whom=f"else-02 (Droplet ID: {OURS + 1})")
        assert await office.mailgun(raw) == Verdict(status=status, result=result)
        assert await office.evidence() == []


@pytest.mark.hostile(42)
async def test_another_mail_of_digitalocean_is_ignored(office: Office) -> None:
    """An invoice is answered as taken, and nothing follows."""
    text = "Your invoice for November is available."
    raw = genuine(sent_at=office.ago(minutes=5), subject="Your invoice", text=text)
    assert await office.mailgun(raw) == Verdict(status=200, result="ignored")
    assert await office.evidence() == []


async def test_a_mail_before_the_identity_is_known_is_kept(town: Town) -> None:
    """It is answered 503, and counts as soon as it is clear whose it is."""
    office = town.open(config=Config(endpoint=NOWHERE, names=("spot-trainer-01",)))
    async with office.provider:
        raw = genuine(sent_at=office.ago(minutes=5))
        assert await office.mailgun(raw) == Verdict(status=503, result="pending")
        for _ in range(20):
            last = await office.mailgun(raw)
        assert last == Verdict(status=503, result="full")
        office.provider._config = Config(endpoint=NOWHERE, droplet_id=OURS, names=("spot-trainer-01",))
        await office.provider._learn()
        assert await office.evidence() == ["strong"]


async def test_what_is_no_mail_is_answered_so_that_it_does_not_come_again(office: Office) -> None:
    """Each service gives up at its own number."""
    verdict = await office.mailgun(b"\x00" * 5000)
    assert verdict == Verdict(status=406, result="malformed")
    assert verdict.why.startswith("mailgun: ")
    assert await office.standard(b"\x00" * 5000) == Verdict(status=400, result="malformed")


async def test_a_mail_that_is_not_understood_is_kept_for_inspection(town: Town) -> None:
    """Readable by us alone, beside what other clouds could not be understood by."""
    office = town.open()
    async with office.provider:
        text = f"Please read what we wrote about Droplet {OURS}."
        await office.mailgun(genuine(sent_at=office.ago(minutes=5), subject="About it", text=text))
        notice = await office.only()
    assert notice.evidence is Evidence.WEAK
    [kept] = (town.state_dir / "malformed").iterdir()
    assert notice.detail.endswith(f"kept as {kept.name}")
    assert kept.name.startswith("digitalocean-mail-")
    assert text.encode() in kept.read_bytes()
    assert kept.stat().st_mode & 0o777 == 0o600


@pytest.mark.hostile(15)
async def test_a_flood_of_forged_mail_keeps_no_genuine_one_out(town: Town) -> None:
    """What is not proven is forgotten again; what is proven has a memory of its own."""
    office = town.open()
    async with office.provider:
        sent = office.ago(minutes=5)
        office.provider._memory.unproven._capacity = 6
        for number in range(10):
            await office.mailgun(plain(sent_at=sent, message_id=f"<{number}@x>"))
        assert len(office.provider._memory.unproven) == 6
        assert await office.mailgun(genuine(sent_at=sent)) == ACCEPTED
        assert len(office.provider._memory.proven) == 2


@pytest.mark.hostile(15)
async def test_a_full_memory_of_what_is_proven_refuses(office: Office) -> None:
    """503, and no effect that could be had twice."""
    office.provider._memory.proven._capacity = 0
    verdict = await office.mailgun(genuine(sent_at=office.ago(minutes=5)))
    assert verdict == Verdict(status=503, result="full")
    assert await office.evidence() == []


@pytest.mark.hostile(17)
async def test_with_a_clock_that_is_off_and_known_to_be_it_may_flush(town: Town) -> None:
    """An hour's difference is heard as weak, and comes again; with a clock that is right it is a replay."""
    office = town.open()
    push = json.dumps({"event": "reclaim", "droplet_id": OURS}).encode()

    async def pushed(at: datetime) -> Verdict:
        headers = signed_headers(SECRET, "msg_x", int(at.timestamp()), push)
        return await office.provider.receive(Received(headers=headers, body=push))

    async with office.provider:
        hour = office.ago(hours=1)
        raw = genuine(sent_at=hour)
        replayed = Verdict(status=401, result="replayed")
        for is_synced in (None, True):
            town.is_clock_synced = is_synced
            assert await pushed(hour) == replayed
            assert await office.standard(raw, signed=hour) == replayed
            assert await office.mailgun(raw, signed=hour, token="a" * 50) == replayed
        assert await office.evidence() == []
        town.is_clock_synced = False
        assert await pushed(hour) == Verdict(status=503, result="unproven")
        assert (await office.standard(raw, signed=hour)).status == 503
        assert (await office.mailgun(raw, signed=hour, token="a" * 50)).status == 503
        assert await office.evidence() == ["weak"]
        assert office.provider.measures["clock_synced"] == 0.0
        assert await pushed(office.ago(hours=2.1)) == replayed
        town.is_clock_synced = True
        assert (await pushed(office.ago(seconds=1))).status == 202
        assert await office.evidence() == ["strong", "weak"]


@pytest.mark.hostile(14)
async def test_after_a_lost_memory_an_old_request_may_flush_and_comes_again(town: Town) -> None:
    """It may have had its effect before; whoever signs anew is heard in full."""
    stamp = town.clock.now()
    (town.state_dir / "digitalocean-replays.json").write_bytes(b"{")
    office = town.open()
    async with office.provider:
        raw = genuine(sent_at=office.ago(minutes=5))
        assert (await office.mailgun(raw, signed=stamp - timedelta(seconds=5))).status == 503
        assert await office.evidence() == ["weak"]
        assert await office.mailgun(raw, signed=stamp + timedelta(seconds=30)) == ACCEPTED


async def test_standard_needs_no_section_and_nothing_of_mail_is_loaded_before(tmp_path: Path) -> None:
    """The webhook's secrets are its own; without any it does not exist."""
    clock = FakeClock()
    context = Context(clock=clock, runtime_dir=tmp_path, webhook_secrets=(SECRET,))
    office = Office(DigitalOcean(Config(endpoint=NOWHERE, droplet_id=OURS), context), clock)
    async with office.provider:
        assert office.provider._mail is None
        assert await office.standard(plain(sent_at=office.ago(minutes=5))) == UNPROVEN
    bare = DigitalOcean(Config(endpoint=NOWHERE), Context(clock=clock, runtime_dir=tmp_path))
    async with bare:
        assert (await bare.receive(Received(headers={}, body=b"", path="standard"))).status == 404


@pytest.mark.hostile(16)
def test_a_service_without_its_secret_does_not_start(tmp_path: Path) -> None:
    """The daemon says which file, before anything is watched."""

    def read(name: str) -> str:
        raise ConfigError(f"secret file {name} is empty")

    context = Context(
        clock=FakeClock(),
        runtime_dir=tmp_path,
        inbound={"mailgun": mailgun.Config(signing_key_files=("/etc/key",))},
        read_secret=read,
    )
    with pytest.raises(ConfigError, match="/etc/key"):
        DigitalOcean(Config(endpoint=NOWHERE), context)


@pytest.mark.parametrize("module", ["dkim", "dns.asyncresolver"])
def test_without_what_proves_a_mail_it_does_not_start(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that installs it is said, before the mail that matters comes."""
    monkeypatch.setitem(sys.modules, module, None)
    context = Context(
        clock=FakeClock(),
        runtime_dir=tmp_path,
        inbound={"mailgun": mailgun.Config(signing_key_files=("new",))},
        read_secret=lambda _: requests_mailgun.KEY,
    )
    with pytest.raises(ConfigError, match=r"spotwatch\[mail\]"):
        DigitalOcean(Config(endpoint=NOWHERE), context)


async def test_an_inbound_service_alone_is_enough_to_be_ready(town: Town) -> None:
    """No secret of the webhook is asked for where a service has its own."""
    office = town.open()
    office.provider._context = Context(
        clock=town.clock,
        runtime_dir=town.state_dir,
        inbound={"mailgun": mailgun.Config(signing_key_files=("new",))},
    )
    async with office.provider:
        answer = await office.ask()
    assert not [error for error in answer.failed.values() if isinstance(error, Unavailable)]
