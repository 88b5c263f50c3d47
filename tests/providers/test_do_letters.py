# SPDX-License-Identifier: Apache-2.0
"""Letters of a fleet's mailbox in the provider: whose they are, what they are worth, and for how long.

The mailbox is a directory. How it is read from elsewhere, and what is forged, is not tested here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spotwatch.errors import ConfigError, Denied, Malformed, Unavailable
from spotwatch.mail.mailbox import (
    BROADCAST,
    HEARTBEAT_KEY,
    Address,
    Heartbeat,
    Letter,
    address_of_name,
)
from spotwatch.mail.mailbox_form import write_heartbeat, write_letters
from spotwatch.model import Evidence
from spotwatch.providers import Context, Measuring
from spotwatch.providers._do_letters import claim_of
from spotwatch.providers.digitalocean import Config, DigitalOcean
from spotwatch.testing import EPOCH, FakeClock
from tests.mail.letters import KEY, OURS, STRANGER, letter

NOWHERE = "http://127.0.0.1:1"
NOW = EPOCH


class Box:
    """A mailbox in a directory, and lives of the daemon that polls it."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "mailbox"
        self.state_dir = tmp_path / "state"
        self.state_dir.mkdir()
        self.clock = FakeClock()

    def put(self, *letters: Letter, key: Any = KEY) -> None:
        """Write an object of letters to one address."""
        path = self.root / letters[0].to.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(write_letters(letters, key, now=self.clock.now()))

    def beat(self, at: datetime | None = None) -> None:
        """Write the relay's sign of life."""
        path = self.root / HEARTBEAT_KEY
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(write_heartbeat(Heartbeat(at=at or self.clock.now(), interval_seconds=60.0), KEY))

    def open(self, **config: Any) -> DigitalOcean:
        """Return a provider that is not entered yet."""
        given: dict[str, Any] = {
            "endpoint": NOWHERE,
            "droplet_id": OURS,
            "mailbox": f"file://{self.root}",
            "mailbox_keys": (KEY.public.text,),
            "mailbox_interval_seconds": 0.02,
        }
        context = Context(clock=self.clock, runtime_dir=self.state_dir, state_dir=self.state_dir)
        return DigitalOcean(Config(**(given | config)), context)


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """Return an empty mailbox."""
    return Box(tmp_path)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition with a time limit."""
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110 - what is awaited has no event of its own
            await asyncio.sleep(0.01)


async def evidence(provider: DigitalOcean) -> list[str]:
    """Poll, and return what the notices in force are worth."""
    return [notice.evidence.value for notice in (await provider.notices()).notices]


async def has_read(provider: DigitalOcean) -> None:
    """Wait until the mailbox has been read, and what was in it is known."""
    mailbox = provider._mailbox
    assert mailbox is not None
    await until(lambda: "not been read yet" not in str(mailbox.problem))


async def test_a_letter_to_our_number_is_a_strong_notice_and_wakes_the_poll(box: Box) -> None:
    """It needs no webhook, nor any address of ours."""
    box.beat()
    provider = box.open()
    async with provider:
        await has_read(provider)
        answer = await provider.notices()
        assert not answer.notices
        assert answer.answered == {"mailbox", "inbox"}
        provider._config = Config(endpoint=NOWHERE, droplet_id=OURS, interval_seconds=60.0)
        waiting = asyncio.create_task(provider.wait())
        box.put(letter(issued_at=box.clock.now()))
        async with asyncio.timeout(15):
            await waiting
        [notice] = (await provider.notices()).notices
    assert (notice.evidence, notice.signal) == (Evidence.STRONG, "mailbox")
    assert notice.detail == "said by a test"


@pytest.mark.parametrize(
    ("to", "worth", "wanted"),
    [
        (Address(OURS), "weak", ["weak"]),
        (address_of_name("Spot-1"), "strong", ["weak"]),
        (BROADCAST, "strong", ["weak"]),
        (Address(OURS + 1), "strong", []),
        (address_of_name("spot-10"), "strong", []),
    ],
)
async def test_whom_a_letter_concerns(box: Box, to: Address, worth: Any, wanted: list[str]) -> None:
    """A name may be another's, and what is for everybody proves nothing of us."""
    box.beat()
    box.put(letter(to=to, evidence=worth, issued_at=box.clock.now()))
    provider = box.open(names=("spot-1",))
    async with provider:
        await has_read(provider)
        assert await evidence(provider) == wanted


async def test_a_cancel_in_the_mailbox_ends_the_notice(box: Box) -> None:
    """Also after a restart, which reads all again."""
    box.beat()
    now = box.clock.now()
    box.put(letter(issued_at=now))
    first = box.open()
    async with first:
        await has_read(first)
        assert await evidence(first) == ["strong"]
    box.put(letter("cancel", issued_at=now + timedelta(minutes=1), message="m2"))
    second = box.open()
    async with second:
        await has_read(second)
        answer = await second.notices()
    assert answer.notices == ()
    assert len(answer.cancelled) == 1


async def test_a_restart_reads_the_letter_again_and_changes_nothing(box: Box) -> None:
    """What is in force stays as it is; what this machine has outlived does not come back."""
    box.beat()
    box.put(letter(issued_at=box.clock.now()))
    first = box.open()
    async with first:
        await has_read(first)
        [notice] = (await first.notices()).notices
    box.clock.wall_offset_seconds += 600
    box.beat()
    second = box.open()
    async with second:
        await has_read(second)
        assert (await second.notices()).notices == (notice,)
        box.clock.wall_offset_seconds += 3 * 3600
        assert (await second.notices()).notices == ()
    third = box.open()
    async with third:
        await has_read(third)
        answer = await third.notices()
    assert not answer.notices
    assert answer.cancelled == {notice.id}


@pytest.mark.hostile(69)
async def test_a_silent_mailbox_is_not_a_quiet_one(box: Box) -> None:
    """Nothing in it, or an old sign of life, is an unavailable signal with its age as a metric."""
    box.root.mkdir()
    provider = box.open()
    assert isinstance(provider, Measuring)
    assert provider.signals == ("mailbox", "inbox")
    async with provider:
        await has_read(provider)
        error = (await provider.notices()).failed["mailbox"]
        assert isinstance(error, Unavailable)
        assert "relay" in error.mend
        assert str(provider.measures["mailbox_heartbeat_age_seconds"]) == "nan"
    box.beat(box.clock.now() - timedelta(seconds=4000))
    provider = box.open()
    async with provider:
        await has_read(provider)
        assert isinstance((await provider.notices()).failed["mailbox"], Unavailable)
        assert 3999 < provider.measures["mailbox_heartbeat_age_seconds"] < 5000
    box.beat()
    provider = box.open()
    async with provider:
        await has_read(provider)
        assert (await provider.notices()).failed == {}


@pytest.mark.hostile(69)
@pytest.mark.parametrize("content", [b"", b"{", b"x" * 10_000_000, b"[]", b'{"letters": 7}'])
async def test_a_letter_that_is_none_is_told_and_makes_no_notice(box: Box, content: bytes) -> None:
    """Neither does one that a stranger signed."""
    box.beat()
    box.put(letter(issued_at=box.clock.now()), key=STRANGER)
    provider = box.open()
    async with provider:
        await until(lambda: provider._mailbox is not None and bool(provider._mailbox._problems))
        assert isinstance((await provider.notices()).failed["mailbox"], Malformed)
    (box.root / Address(OURS).key).write_bytes(content)
    provider = box.open()
    async with provider:
        await until(lambda: provider._mailbox is not None and bool(provider._mailbox._problems))
        answer = await provider.notices()
        assert isinstance(answer.failed["mailbox"], Malformed | Denied)
        assert answer.notices == ()


async def test_before_the_identity_is_known_nothing_is_taken_and_all_is_read_again(box: Box) -> None:
    """A letter must not be lost, nor end up in another Droplet's inbox."""
    box.beat()
    box.put(letter(issued_at=box.clock.now()))
    box.put(letter(to=BROADCAST, evidence="weak", issued_at=box.clock.now(), message="m2"))
    provider = box.open(droplet_id=0)
    async with provider:
        await has_read(provider)
        assert await evidence(provider) == []
        known = box.open()
        provider._config = known._config
        await provider._learn()
        await until(lambda: len(provider._memory.inbox.notices) == 2)
        assert await evidence(provider) == ["strong", "weak"]


def test_a_letter_without_a_time_is_two_hours_from_its_mail() -> None:
    """Read again later, it does not say another time."""
    timeless = replace(letter(issued_at=NOW), at=None)
    found = {claim_of(timeless, droplet_id=OURS, now=NOW + timedelta(minutes=late)) for late in (0, 30)}
    assert {one.deadline for one in found if one is not None} == {NOW + timedelta(hours=2)}


@pytest.mark.parametrize(("hours", "wanted"), [(2.9, True), (3.1, False)])
@pytest.mark.parametrize("event", ["reclaim", "correction"])
def test_what_this_machine_has_outlived_claims_nothing(event: Any, hours: float, wanted: bool) -> None:
    """An hour after the deadline nobody is told to stop any more."""
    made = claim_of(letter(event, issued_at=NOW), droplet_id=OURS, now=NOW + timedelta(hours=hours))
    assert (made is not None) is wanted
    assert claim_of(letter("cancel", issued_at=NOW), droplet_id=OURS, now=NOW + timedelta(days=1)) is not None


async def test_a_letter_from_before_this_droplet_may_only_flush(box: Box) -> None:
    """The relay may have found our number by a name that was another's when the mail was written."""
    box.beat()
    box.put(letter(issued_at=box.clock.now() - timedelta(minutes=100)))
    box.clock.boot_offset_seconds -= box.clock.boot() - 60
    provider = box.open()
    async with provider:
        await has_read(provider)
        assert await evidence(provider) == ["weak"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"mailbox_keys": ()}, "mailbox_keys"),
        ({"mailbox": "", "mailbox_keys": ("whpk_x",)}, "mailbox"),
        ({"mailbox": "ftp://x/y", "mailbox_keys": ("whpk_x",)}, "ftp"),
        ({"mailbox_interval_seconds": 0}, "mailbox_interval_seconds"),
    ],
)
def test_settings_that_cannot_work_are_refused(box: Box, wrong: dict[str, Any], said: str) -> None:
    """The message names the key."""
    with pytest.raises(ValueError, match=said):
        box.open(**wrong)


@pytest.mark.parametrize("key", ["whsk_AAAA", "whpk_AAAA", "whpk_!", "x"])
def test_a_key_that_is_none_does_not_start(box: Box, key: str) -> None:
    """A relay's own secret is refused here by its prefix."""
    with pytest.raises(ConfigError):
        box.open(mailbox_keys=(key,))
