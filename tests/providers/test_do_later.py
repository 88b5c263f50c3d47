# SPDX-License-Identifier: Apache-2.0
"""What a later message makes of a notice whose time has passed, that was forged, or whose end was not told.

What claims make of one another otherwise is tested beside this file.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwatch.ledger import Ledger
from spotwatch.model import Answer
from spotwatch.providers._do_inbox import Inbox
from spotwatch.testing import FakeClock, run_virtual
from tests.providers.do_claims import OURS, STRONG, WEAK, Event, claim, deadline, inbox, minutes


@pytest.mark.parametrize("event", ["reclaim", "correction"])
def test_what_is_signed_after_the_time_has_passed_is_another_notice(event: Event) -> None:
    """The Droplet has outlived the first one, whose case may be closed for good."""
    made = inbox()
    made.take(claim(at=30))
    [first] = made.notices
    assert made.take(claim(event, at=130, signed=31)) == "accepted"
    [second] = made.notices
    assert second.id != first.id
    assert made.ended == {first.id}
    assert deadline(made) == 130
    for late in (claim(at=30, received=40), claim(at=25, signed=2, received=41)):
        assert made.take(late) == "duplicate"
        assert deadline(made) == 130
    assert made.take(claim(at=100, signed=42)) == "accepted"
    assert [notice.id for notice in made.notices] == [second.id]


def test_a_second_reclaim_opens_a_case_when_the_first_was_survived() -> None:
    """A case that is closed stays so; the notice after it has one of its own, for whatever it is worth."""

    async def main() -> None:
        clock = FakeClock(start=minutes(0))
        ledger, made = Ledger(clock), inbox()
        for start in (0, 140):
            for evidence in (STRONG, WEAK):
                made.take(claim(evidence=evidence, at=start + 30, signed=start, message=f"m{start}"))
            answer = Answer(notices=made.notices, answered=frozenset({"webhook"}), cancelled=made.ended)
            ledger.observe("digitalocean", answer, absence_withdraws=False)
            assert [case.notice.id for case in ledger.open_cases()] == [one.id for one in made.notices]
            assert len(made.notices) == 2
            await clock.sleep(140 * 60)
            ledger.check_ends()
            assert ledger.open_cases() == []

    run_virtual(main())


def test_a_word_about_the_time_that_has_passed_is_not_another_notice() -> None:
    """That it was taken back at noon says nothing of another time."""
    made = inbox()
    made.take(claim(at=30))
    assert made.take(claim(at=30, signed=32)) == "duplicate"
    assert deadline(made) == 30


@pytest.mark.parametrize("at", [-5000, -1, 5, 1_000_000])
@pytest.mark.parametrize("dated", [-5000, 0, 5_000_000])
def test_no_weak_message_silences_another(at: float, dated: float) -> None:
    """Whatever times it says, the next one is flushed too, ten minutes later at the earliest."""
    made = inbox()
    assert made.take(claim(evidence=WEAK, at=at, signed=dated, received=0, message="forged")) == "accepted"
    [first] = made.notices
    assert (first.issued_at, first.deadline) == (minutes(min(dated, 0)), minutes(120))
    assert made.take(claim(evidence=WEAK, at=90, signed=8, received=9, message="a")) == "duplicate"
    assert made.take(claim(evidence=WEAK, at=90, signed=8, received=11, message="a")) == "accepted"
    [second] = made.notices
    assert second.id != first.id
    assert made.ended == {first.id}


def test_a_weak_message_that_comes_again_is_one(tmp_path: Path) -> None:
    """By whichever way, and after a restart: it was flushed."""
    path = tmp_path / "inbox.json"
    made = inbox(path)
    made.take(claim(evidence=WEAK, message="a"))
    [first] = made.notices
    assert made.save()
    again = inbox(path)
    assert again.take(claim(evidence=WEAK, received=30, message="a")) == "duplicate"
    assert again.notices == (first,)


def test_a_flood_of_weak_messages_is_a_notice_in_ten_minutes() -> None:
    """No date that they bear makes an id come back, nor a trainer save more often."""
    made = inbox()
    ids: set[str] = set()
    for number in range(24 * 60):
        made.take(claim(evidence=WEAK, signed=0, received=number, message=str(number)))
        ids.update(notice.id for notice in made.notices)
    assert len(ids) == 24 * 6


def test_a_clock_that_was_set_back_keeps_no_weak_message_waiting() -> None:
    """What came "in ten hours" is no reason to wait so long."""
    made = inbox()
    made.take(claim(evidence=WEAK, signed=600, message="a"))
    assert made.take(claim(evidence=WEAK, signed=0, message="b")) == "accepted"


def test_a_message_from_before_this_droplet_is_told_from_a_late_one(tmp_path: Path) -> None:
    """Before its first boot that we know of, by more than the five minutes that clocks may differ."""
    path = tmp_path / "inbox.json"
    made = Inbox(path)
    made.belong_to(OURS, since=minutes(0))
    assert made.is_before_us(minutes(-26), booted_at=minutes(-20))
    assert not made.is_before_us(minutes(-24), booted_at=minutes(-20))
    assert made.save()
    rebooted = Inbox(path)
    rebooted.belong_to(OURS, since=minutes(60))
    assert not rebooted.is_before_us(minutes(1), booted_at=minutes(60))
    assert rebooted.is_before_us(minutes(-6), booted_at=minutes(60))
    assert not inbox().is_before_us(minutes(-5000), booted_at=minutes(0))
