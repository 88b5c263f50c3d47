# SPDX-License-Identifier: Apache-2.0
"""What a judged mail and a signed notice become: to whom, how well proven, and until when."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from spotwatch.config import RelayDroplet
from spotwatch.mail.mailbox import BROADCAST, Address, address_of_name
from spotwatch.mail.model import Droplet, Judgement
from spotwatch.model import Evidence
from spotwatch.providers._do_message import Message
from spotwatch.relay.fleet import Fleet
from spotwatch.relay.letters import MAX_WEAK, of_judgements, of_notice, to_everybody
from spotwatch.testing import EPOCH, FakeClock

_HOUR = timedelta(hours=1)
_ONE = Droplet(droplet_id=1, names=frozenset({"spot-1"}))


async def _listed() -> tuple[Droplet, ...]:
    twin = [Droplet(droplet_id=number, hostname="twin") for number in (3, 4)]
    return (Droplet(droplet_id=2, hostname="Spot-2", names=frozenset({"spot-2"})), *twin)


@pytest.fixture
async def fleet() -> Fleet:
    """Give one configured Droplet and three listed ones, two of the same name."""
    made = Fleet([RelayDroplet(id=1, names=("spot-1",))], _listed, FakeClock(), state_dir=None)
    await made.refresh()
    return made


def _judged(**changes: Any) -> Judgement:
    given: dict[str, Any] = {
        "event": "reclaim",
        "evidence": Evidence.STRONG,
        "result": "accepted",
        "droplet": _ONE,
        "at": EPOCH + 1.5 * _HOUR,
        "signed_at": EPOCH - _HOUR / 2,
        "message_key": "<a@digitalocean.com>",
        "detail": "a mail",
    }
    return Judgement(**(given | changes))


def test_a_judgement_becomes_a_letter_to_its_droplet() -> None:
    """Its time, date and evidence are the judgement's; the mail's id is only told as a hash."""
    (made,) = of_judgements([_judged()], now=EPOCH)
    assert (made.to, made.event, made.evidence) == (Address(1), "reclaim", Evidence.STRONG)
    assert (made.at, made.issued_at) == (EPOCH + 1.5 * _HOUR, EPOCH - _HOUR / 2)
    assert made.expires_at == EPOCH + 7.5 * _HOUR
    assert "digitalocean" not in made.message
    assert of_judgements([_judged()], now=EPOCH + _HOUR)[0].message == made.message


def test_nothing_follows_from_what_is_nothing() -> None:
    """A mail that is ignored, or another's, makes no letter."""
    assert of_judgements([_judged(event="none", result="ignored", droplet=None)], now=EPOCH) == ()


def test_several_droplets_get_a_letter_each() -> None:
    """One mail, one letter a Droplet that it names."""
    judged = [_judged(droplet=Droplet(droplet_id=number)) for number in (5, 6, 7)]
    assert [one.to for one in of_judgements(judged, now=EPOCH)] == [Address(5), Address(6), Address(7)]


def test_an_unproven_mail_about_many_is_one_letter_to_everybody() -> None:
    """A forger who names a whole fleet makes no queue; what is proven is told to each of however many."""
    droplets = [Droplet(droplet_id=number) for number in range(1, 3001)]
    first = _judged(droplet=droplets[7], evidence=Evidence.WEAK, at=EPOCH + _HOUR)
    weak = [_judged(droplet=one, evidence=Evidence.WEAK) for one in droplets]
    (made,) = of_judgements([*weak, first], now=EPOCH)
    assert (made.to, made.event, made.evidence) == (BROADCAST, "reclaim", Evidence.WEAK)
    assert made.at == EPOCH + 2 * _HOUR
    assert len(of_judgements(weak[:MAX_WEAK], now=EPOCH)) == MAX_WEAK
    strong = [_judged(droplet=one) for one in droplets]
    assert len(of_judgements(strong, now=EPOCH)) == 3000
    mixed = of_judgements([*strong[:2], *weak], now=EPOCH)
    assert [one.to for one in mixed] == [Address(1), Address(2), BROADCAST]


async def test_a_name_of_many_droplets_is_one_letter_to_everybody() -> None:
    """A signed notice that gives the name of a whole fleet is as weak, and as short."""

    async def listed() -> tuple[Droplet, ...]:
        return tuple(Droplet(droplet_id=number, hostname="twin") for number in range(1, MAX_WEAK + 2))

    fleet = Fleet([], listed, FakeClock(), state_dir=None)
    await fleet.refresh()
    (made,) = of_notice(_notice(name="twin"), fleet=fleet, webhook_id="m", is_doubtful=False, now=EPOCH)
    assert (made.to, made.evidence) == (BROADCAST, Evidence.WEAK)


def test_a_mail_that_names_nobody_is_for_everybody_and_weak() -> None:
    """However well it is proven, unless the configuration says that there is only one Droplet."""
    judged = _judged(droplet=None)
    (made,) = of_judgements([judged], now=EPOCH)
    assert (made.to, made.evidence) == (BROADCAST, Evidence.WEAK)
    (made,) = of_judgements([judged], now=EPOCH, sole=_ONE)
    assert (made.to, made.evidence) == (Address(1), Evidence.STRONG)
    weak = _judged(droplet=None, evidence=Evidence.WEAK)
    assert of_judgements([weak], now=EPOCH, sole=_ONE)[0].to == BROADCAST


@pytest.mark.parametrize("signed_at", [EPOCH + 10 * 365 * 24 * _HOUR, EPOCH + _HOUR])
@pytest.mark.parametrize("at", [None, EPOCH + 10 * 365 * 24 * _HOUR, EPOCH - 5 * _HOUR, EPOCH + _HOUR])
@pytest.mark.parametrize("event", ["reclaim", "correction"])
def test_no_date_that_a_stranger_writes_outlasts_the_others(
    event: str, at: datetime | None, signed_at: datetime
) -> None:
    """A forged mail from the year 2036 must not stand before the genuine one, nor an old one hide it."""
    judged = _judged(event=event, at=at, signed_at=signed_at, evidence=Evidence.WEAK)
    (made,) = of_judgements([judged], now=EPOCH)
    assert made.issued_at == EPOCH
    assert made.expires_at <= EPOCH + 8 * _HOUR
    assert made.at == EPOCH + 2 * _HOUR


def test_a_cancel_without_proof_is_told_nobody() -> None:
    """Else it would take the place of a weak letter that a Droplet has not read yet."""
    assert of_judgements([_judged(event="cancel", evidence=Evidence.WEAK)], now=EPOCH) == ()
    (made,) = of_judgements([_judged(event="cancel")], now=EPOCH)
    assert (made.event, made.evidence) == ("cancel", Evidence.STRONG)


def test_a_reclaim_without_a_time_ends_two_hours_after_its_date() -> None:
    """A mail that could not be judged says no time; a late one leaves less of it."""
    (made,) = of_judgements([_judged(at=None)], now=EPOCH)
    assert made.at == EPOCH + 1.5 * _HOUR


def test_what_is_told_to_everybody_is_weak() -> None:
    """While it is unknown who there is, all may save and none is stopped."""
    made = to_everybody(message="m", why="who knows", now=EPOCH)
    assert (made.to, made.event, made.evidence, made.at) == (
        BROADCAST,
        "reclaim",
        Evidence.WEAK,
        EPOCH + 2 * _HOUR,
    )


def _notice(droplet_id: int | None = None, name: str = "", event: str = "reclaim") -> Message:
    return Message(
        event=event,  # type: ignore[arg-type]  # one of the two
        droplet_id=droplet_id,
        name=name,
        at=None,
        signed_at=EPOCH,
        received_at=EPOCH,
    )


@pytest.mark.parametrize(
    ("notice", "to"),
    [
        (_notice(1), {Address(1): "strong"}),
        (_notice(999), {Address(999): "strong"}),
        (_notice(1, "spot-1"), {Address(1): "strong"}),
        (_notice(1, "spot-2"), {Address(1): "weak"}),
        (_notice(999, "anything"), {Address(999): "strong"}),
        (_notice(name="SPOT-1"), {Address(1): "strong"}),
        (_notice(name="spot-2"), {Address(2): "strong"}),
        (_notice(name="twin"), {Address(3): "weak", Address(4): "weak"}),
        (_notice(3, "twin"), {Address(3): "strong"}),
        (_notice(name="spot-20"), {address_of_name("spot-20"): "weak"}),
        (_notice(), {BROADCAST: "weak"}),
        (_notice(name="  "), {BROADCAST: "weak"}),
    ],
)
def test_whom_a_signed_notice_concerns(fleet: Fleet, notice: Message, to: dict[Address, str]) -> None:
    """A number, or a name that is one Droplet's alone, is certain; all else may only flush."""
    made = of_notice(notice, fleet=fleet, webhook_id="msg_1", is_doubtful=False, now=EPOCH)
    assert {one.to: str(one.evidence) for one in made} == to


def test_a_notice_whose_time_fits_only_a_wrong_clock_is_weak(fleet: Fleet) -> None:
    """It may be a replay."""
    (made,) = of_notice(_notice(1), fleet=fleet, webhook_id="msg_1", is_doubtful=True, now=EPOCH)
    assert made.evidence is Evidence.WEAK


def test_a_notices_name_cannot_steer_a_log(fleet: Fleet) -> None:
    """What a letter says is short and on one harmless line."""
    (made,) = of_notice(
        _notice(name="\x1b[2J\n\u202e" + "x" * 200),
        fleet=fleet,
        webhook_id="m",
        is_doubtful=False,
        now=EPOCH,
    )
    assert made.detail.isprintable()
    assert len(made.detail) <= 220
