# SPDX-License-Identifier: Apache-2.0
"""Genuine mail while this machine's clock is not set yet, by services whose own time says nothing of that.

ForwardEmail signs no time, and a mail server on this machine signs by the same wrong clock.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from spotwatch.providers import Verdict
from tests.mail.making import SIGNER, genuine, plain
from tests.providers.do_office import ACCEPTED, UNPROVEN, Town

pytest_plugins = ["tests.providers.do_office_fixtures"]

AGAIN = Verdict(status=503, result="unproven")


@pytest.mark.hostile(17)
@pytest.mark.parametrize("event", ["reclaim", "cancel"])
@pytest.mark.parametrize("by", ["forwardemail", "standard"])
@pytest.mark.parametrize("off_minutes", [-30, 240])
async def test_a_date_that_does_not_fit_is_asked_for_again(
    town: Town, off_minutes: float, by: str, event: str
) -> None:
    """It flushes now; the same bytes are worth what they are once the clock is set."""
    town.is_clock_synced = False
    office = town.open()
    async with office.provider:
        raw = genuine(sent_at=office.ago(minutes=off_minutes), event=event)
        for _ in range(2):
            assert await getattr(office, by)(raw) == AGAIN
        assert await office.evidence() == (["weak"] if event == "reclaim" else [])
        town.clock.wall_offset_seconds += timedelta(minutes=1 - off_minutes).total_seconds()
        town.is_clock_synced = True
        assert await getattr(office, by)(raw) == ACCEPTED
        assert ("strong" in await office.evidence()) == (event == "reclaim")


@pytest.mark.parametrize("is_synced", [True, None])
async def test_with_a_clock_that_is_set_a_date_that_does_not_fit_is_the_mail_s_own(
    town: Town, is_synced: bool | None
) -> None:
    """Nobody is asked to send it again: it would be no younger."""
    town.is_clock_synced = is_synced
    office = town.open()
    async with office.provider:
        assert await office.forwardemail(genuine(sent_at=office.ago(minutes=240))) == UNPROVEN


async def test_a_date_that_fits_counts_whatever_the_clock(town: Town) -> None:
    """An unset clock that is nearly right costs nothing."""
    town.is_clock_synced = False
    office = town.open()
    async with office.provider:
        assert await office.forwardemail(genuine(sent_at=office.ago(minutes=5))) == ACCEPTED
        assert await office.evidence() == ["strong"]


@pytest.mark.parametrize("tag", ["x", "t"])
async def test_a_signature_s_own_times_are_asked_for_again_too(town: Town, tag: str) -> None:
    """Expired, or from the future, by a clock that is an hour and a half off, while the date still fits."""
    off = timedelta(minutes=90 if tag == "x" else -9)
    town.is_clock_synced = False
    office = town.open()
    async with office.provider:
        true_now = office.ago() - off
        times = {
            "x": {"t": true_now, "x": true_now + timedelta(hours=1)},
            "t": {"t": true_now + timedelta(minutes=2)},
        }[tag]
        tags = {name: str(int(moment.timestamp())) for name, moment in times.items()}
        raw = SIGNER.sign(plain(sent_at=true_now), tags=tags)
        assert await office.forwardemail(raw) == AGAIN
        assert await office.evidence() == ["weak"]
        town.clock.wall_offset_seconds -= off.total_seconds()
        town.is_clock_synced = True
        assert await office.forwardemail(raw) == ACCEPTED
        assert "strong" in await office.evidence()


async def test_what_proves_nothing_anyway_is_weak_for_good(town: Town) -> None:
    """An unset clock is no reason to ask for a forged mail of today again and again."""
    town.is_clock_synced = False
    office = town.open()
    async with office.provider:
        assert await office.forwardemail(plain(sent_at=office.ago(minutes=5))) == UNPROVEN
