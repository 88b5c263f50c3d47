# SPDX-License-Identifier: Apache-2.0
"""That a mail counts once, whoever brings it and whenever, and that no forged one keeps it from that.

What it becomes is tested beside this file.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from spotwatch.model import Evidence
from spotwatch.providers import Received, Verdict
from spotwatch.providers.digitalocean import Config
from spotwatch.webhooks import signed_headers
from tests.mail.making import OURS, SIGNER, forged, genuine, plain
from tests.providers.do_office import ACCEPTED, DUPLICATE, NOWHERE, SECRET, UNPROVEN, Office, Town

pytest_plugins = ["tests.providers.do_office_fixtures"]


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
async def test_what_a_full_memory_cannot_keep_flushes_and_comes_again(office: Office) -> None:
    """503, and no effect that must not be had twice: a stop, or the end of a notice."""
    sent = office.ago(minutes=5)
    office.provider._memory.proven._capacity = 0
    full = Verdict(status=503, result="full")
    for _ in range(2):
        assert await office.mailgun(genuine(sent_at=sent)) == full
        assert await office.evidence() == ["weak"]
    before = await office.ask()
    cancel = genuine(event="cancel", sent_at=office.ago(minutes=1), message_id="<two@x>")
    assert await office.mailgun(cancel) == full
    assert await office.ask() == before
    office.provider._memory.proven._capacity = 10
    assert await office.mailgun(genuine(sent_at=sent)) == ACCEPTED
    assert await office.evidence() == ["strong", "weak"]


@pytest.mark.hostile(14, 15)
async def test_a_proven_mail_is_known_by_what_is_signed(office: Office) -> None:
    """Under another Message-ID, or other headers that nobody signed, it is the same mail at any time."""
    sent = office.ago(minutes=1)
    covered = ("from", "to", "subject", "date")
    raw = SIGNER.sign(plain(sent_at=sent, at=sent + timedelta(minutes=40)), headers=covered)
    assert await office.mailgun(raw) == ACCEPTED
    places = len(office.provider._memory.proven)

    async def again() -> None:
        for number in range(3):
            copy = raw.replace(b"<one@digitalocean.com>", f"<r{number}@x>".encode())
            copy = copy.replace(b"charset=utf-8", b"charset=us-ascii" if number else b"charset=latin-1")
            assert await office.mailgun(copy) == DUPLICATE
        assert len(office.provider._memory.proven) == places

    await again()
    office.clock.wall_offset_seconds += 110 * 60
    assert await office.evidence() == []
    await again()
    assert await office.evidence() == []


async def test_a_signed_notice_that_a_full_memory_cannot_keep_flushes_and_comes_again(office: Office) -> None:
    """As a mail does; a cancel has to wait until there is room."""
    memory = office.provider._memory.proven

    async def push(event: str) -> Verdict:
        body = json.dumps({"event": event, "droplet_id": OURS}).encode()
        headers = signed_headers(SECRET, f"msg_{event}", int(office.clock.now().timestamp()), body)
        return await office.provider.receive(Received(headers=headers, body=body))

    memory._capacity = 0
    for event in ("reclaim", "cancel", "reclaim"):
        assert await push(event) == Verdict(status=503, result="full")
        assert await office.evidence() == ["weak"]
    memory._capacity = 10
    assert (await push("reclaim")).status == 202
    assert await office.evidence() == ["strong", "weak"]


async def test_another_mail_in_the_same_minute_is_another_one(office: Office) -> None:
    """What is signed tells them apart, though neither signs a Message-ID."""
    sent = office.ago(minutes=1)
    covered = ("from", "to", "subject", "date")
    for minutes in (100, 40):
        raw = SIGNER.sign(plain(sent_at=sent, at=sent + timedelta(minutes=minutes)), headers=covered)
        assert await office.mailgun(raw) == ACCEPTED


@pytest.mark.hostile(38)
async def test_an_unproven_cancel_does_nothing(office: Office) -> None:
    """Neither to a weak notice, however old, nor to a strong one; nor does it hide its proven copy."""
    await office.mailgun(plain(sent_at=office.ago(minutes=5), message_id="<a@x>"))
    await office.mailgun(genuine(sent_at=office.ago(minutes=5)))
    office.clock.wall_offset_seconds += 700
    before = await office.ask()
    sent = office.ago(minutes=1)
    for make in (plain, forged):
        cancel = make(event="cancel", sent_at=sent, message_id="<c@x>")
        assert await office.mailgun(cancel) == Verdict(status=200, result="unproven")
    assert await office.ask() == before
    cancel = genuine(event="cancel", sent_at=sent, message_id="<c@x>")
    assert await office.mailgun(cancel) == ACCEPTED
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
            assert await office.mailgun(raw, signed=office.ago(hours=9), token="b" * 50) == replayed
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


@pytest.mark.hostile(13)
async def test_a_repetition_that_still_carries_the_first_time_is_heard_and_counts_once(
    office: Office,
) -> None:
    """Mailgun repeats for eight hours; how old a mail is says its own signed date, not Mailgun's."""
    hour = office.ago(hours=1)
    raw = genuine(sent_at=hour)
    assert await office.mailgun(raw, signed=hour, token="a" * 50) == ACCEPTED
    assert await office.mailgun(raw, signed=hour, token="a" * 50) == DUPLICATE
    assert await office.mailgun(raw, signed=hour, token="b" * 50) == DUPLICATE
    old = genuine(sent_at=office.ago(hours=4), message_id="<old@x>")
    assert await office.mailgun(old, signed=hour, token="c" * 50) == UNPROVEN
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
