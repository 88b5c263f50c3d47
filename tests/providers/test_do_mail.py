# SPDX-License-Identifier: Apache-2.0
"""Mail by real services into the provider: what it becomes, and what it is answered.

That each counts once is tested beside this file. It does not test what a service signs or what words mean.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote_from_bytes

import pytest

from spotwatch.config import Webhook
from spotwatch.errors import ConfigError, Unavailable
from spotwatch.mail.inbound import mailgun
from spotwatch.mail.model import MAX_MAIL_BYTES
from spotwatch.model import Evidence
from spotwatch.providers import Context, Received, Verdict
from spotwatch.providers.digitalocean import Config, DigitalOcean
from spotwatch.testing import FakeClock
from spotwatch.webhook_guard import Limits
from tests.mail.inbound import requests_mailgun
from tests.mail.making import OURS, forged, genuine, plain
from tests.providers.do_office import ACCEPTED, DUPLICATE, NOWHERE, SECRET, UNPROVEN, Office, Town

pytest_plugins = ["tests.providers.do_office_fixtures"]


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


async def test_a_service_vouches_for_what_it_hands_on_and_a_stranger_for_nothing(office: Office) -> None:
    """Also for a mail that means nothing: it is the service that has authenticated."""
    for raw in (genuine(sent_at=office.ago(minutes=5)), b"\0" * 100):
        assert (await office.mailgun(raw)).is_vouched
    fields = requests_mailgun.signed(timestamp=int(office.clock.now().timestamp()), token="t" * 50)
    unsigned = requests_mailgun.form(("body-mime", b"x"), *(fields | {"signature": "0" * 64}).items())
    verdict = await office.provider.receive(unsigned)
    assert (verdict.status >= 400, verdict.is_vouched) == (True, False)


async def test_a_mail_of_which_the_rest_is_cut_off_may_only_flush(office: Office) -> None:
    """It is heard: its first words are there, and its proof is not."""
    raw = genuine(sent_at=office.ago(minutes=5)) + b"x" * MAX_MAIL_BYTES
    assert await office.mailgun(raw) == UNPROVEN
    assert await office.evidence() == ["weak"]


@pytest.mark.parametrize(
    "encode",
    [bytes, base64.b64encode, lambda raw: quote_from_bytes(raw, safe="").encode()],
    ids=["raw", "base64", "urlencoded"],
)
def test_all_that_is_read_of_a_mail_fits_the_listener(encode: Callable[[bytes], bytes]) -> None:
    """In whatever form a service posts it, with room for what else it says."""
    posted = encode(b"\xff" * MAX_MAIL_BYTES)
    room = Webhook().max_body_bytes
    assert len(posted) + 64 * 1024 <= room == Limits().body_bytes


@pytest.mark.hostile(6)
@pytest.mark.parametrize("path", ["mailgum", "mailgun/raw", "mailgun/mime/x", "sendgrid", "../mailgun", "."])
async def test_a_service_that_is_not_set_up_is_404(office: Office, path: str) -> None:
    """What is not configured does not exist."""
    assert (await office.provider.receive(Received(headers={}, body=b"", path=path))).status == 404


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
    """It is older than a proof may be: its time says nothing, it is a flush now, and never a stop."""
    assert await office.mailgun(genuine(sent_at=office.ago(hours=3, minutes=5))) == UNPROVEN
    notice = await office.only()
    assert notice.evidence is Evidence.WEAK
    assert notice.deadline is not None
    assert notice.deadline > office.clock.now()
    office.clock.wall_offset_seconds += 3 * 3600 + 60
    assert await office.evidence() == []


async def test_a_mail_from_before_this_droplet_may_only_flush(town: Town) -> None:
    """Another one may have had its name; who was there already, and has only rebooted, is meant."""
    town.clock.boot_offset_seconds -= town.clock.boot() - 60
    office = town.open()
    async with office.provider:
        sent = office.ago(minutes=100)
        assert await office.mailgun(genuine(sent_at=sent, whom="spot-trainer-01")) == UNPROVEN
        [notice] = (await office.ask()).notices
        assert notice.evidence is Evidence.WEAK
        assert "older than this Droplet" in notice.detail
        cancel = genuine(sent_at=sent, event="cancel", message_id="<two@x>")
        assert await office.mailgun(cancel) == Verdict(status=200, result="unproven")
    town.clock.wall_offset_seconds += 40 * 60
    rebooted = town.open()
    town.clock.boot_offset_seconds -= town.clock.boot() - 60
    async with rebooted.provider:
        raw = genuine(sent_at=rebooted.ago(minutes=30), message_id="<three@x>")
        assert await rebooted.mailgun(raw, token="b" * 50) == ACCEPTED
        assert "strong" in await rebooted.evidence()


async def test_a_second_reclaim_is_heard_when_the_first_one_has_passed(office: Office) -> None:
    """Its notice has an id of its own, for the case of the first one may be closed."""
    sent = office.ago(minutes=1)
    await office.mailgun(genuine(sent_at=sent, at=sent + timedelta(minutes=30)))
    first = await office.only()
    office.clock.wall_offset_seconds += 45 * 60
    again = office.ago(minutes=1)
    assert await office.mailgun(genuine(sent_at=again, message_id="<second@x>")) == ACCEPTED
    answer = await office.ask()
    assert answer.cancelled == {first.id}
    [second] = answer.notices
    assert second.id != first.id
    assert second.deadline == again.replace(second=0) + timedelta(hours=2)


@pytest.mark.parametrize("dated", [timedelta(days=-3000), timedelta(days=3000)])
async def test_no_forged_mail_silences_the_next(office: Office, dated: timedelta) -> None:
    """Whatever dates and times it bears, a mail that may only flush does so ten minutes later."""
    forged_at = office.clock.now() + dated
    await office.mailgun(plain(sent_at=forged_at, message_id="<f@x>", at=office.ago(hours=9)))
    first = await office.only()
    assert first.issued_at is not None
    assert first.issued_at <= office.clock.now()
    office.clock.wall_offset_seconds += 660
    assert await office.mailgun(plain(sent_at=office.ago(minutes=3), message_id="<g@x>")) == UNPROVEN
    assert (await office.only()).id != first.id


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
    assert "unproven" not in kept.name
    assert text.encode() in kept.read_bytes()
    assert kept.stat().st_mode & 0o777 == 0o600


async def test_forged_mails_that_are_not_understood_displace_no_proven_one(town: Town) -> None:
    """The one that somebody should look at is still there after a flood."""
    office = town.open()
    async with office.provider:
        text = f"Please read what we wrote about Droplet {OURS}."
        sent = office.ago(minutes=5)
        await office.mailgun(genuine(sent_at=sent, subject="About it", text=text))
        for number in range(25):
            raw = plain(sent_at=sent, subject="About it", text=text, message_id=f"<{number}@x>")
            await office.mailgun(raw)
    names = [path.name for path in (town.state_dir / "malformed").iterdir()]
    assert sum("unproven" not in name for name in names) == 1
    assert len(names) == 11


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
