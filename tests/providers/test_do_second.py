# SPDX-License-Identifier: Apache-2.0
"""A second proven mail with a later time, written before the first time has passed: it is not lost.

Times are minutes. What claims make of one another otherwise is tested beside this file.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from spotwatch.ledger import Ledger
from spotwatch.model import Answer
from spotwatch.providers._do_inbox import Inbox
from spotwatch.providers._do_slot import Claim
from spotwatch.testing import FakeClock, run_virtual
from tests.providers.do_claims import NOW, STRONG, claim, deadline, inbox, minutes, only


async def _cases_at(made: Inbox, moments: Sequence[float], start: float) -> dict[float, list[float]]:
    """Return the deadlines of the open cases at each moment, looked at every minute."""
    clock = FakeClock(start=minutes(start))
    ledger, found = Ledger(clock), {}
    while (passed := (clock.now() - NOW).total_seconds() / 60) <= max(moments):
        made.expire(clock.now())
        answer = Answer(notices=made.notices, answered=frozenset({"webhook"}), cancelled=made.ended)
        ledger.observe("digitalocean", answer, absence_withdraws=False)
        ledger.check_ends()
        if passed in moments:
            open_now = [case.notice.deadline for case in ledger.open_cases()]
            found[passed] = [(at - NOW).total_seconds() / 60 for at in open_now if at is not None]
        await clock.sleep(60)
    return found


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_later_time_counts_when_the_first_is_survived(tmp_path: Path, is_restarted: bool) -> None:
    """At 13:00 it stayed; at 14:20, of which a mail of 12:30 told, the machine goes with a case open."""

    async def main() -> None:
        path = tmp_path / "inbox.json"
        made = inbox(path)
        made.take(claim(signed=0, at=60))
        assert made.take(claim(signed=30, at=140)) == "accepted"
        assert deadline(made) == 60
        if is_restarted:
            assert made.save()
            made = inbox(path)
        found = await _cases_at(made, (31, 60, 69, 72, 139), 30)
        assert found == {31: [60], 60: [60], 69: [60], 72: [140], 139: [140]}

    run_virtual(main())


def test_a_notice_that_comes_into_force_is_seen_then() -> None:
    """Else an order that follows at once would seem to be forty minutes late."""
    made = inbox()
    made.take(claim(signed=0, at=60))
    made.take(claim(signed=30, at=140))
    made.expire(minutes(71))
    notice = only(made, STRONG)
    assert notice is not None
    assert (notice.seen_at, notice.issued_at) == (minutes(71), minutes(30))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_cancel_governs_only_what_was_signed_before_it(order: tuple[int, ...]) -> None:
    """The first mail is called off, the second was written after that: its time holds."""
    said = [claim(signed=0, at=110), claim("cancel", signed=30, at=None), claim(signed=40, at=150)]
    made = inbox()
    for number in order:
        made.take(_arriving(said[number]))
    assert deadline(made) == 150


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_correction_takes_the_place_of_what_was_said_before_it(order: tuple[int, ...]) -> None:
    """Here of the first time; the second, written after it, is left behind it."""
    said = [claim(signed=0, at=60), claim("correction", signed=30, at=100), claim(signed=40, at=150)]
    made = inbox()
    for number in order:
        made.take(_arriving(said[number]))
    assert deadline(made) == 100
    made.take(claim("cancel", signed=35, received=41, at=None))
    assert deadline(made) == 150


def test_a_cancel_after_both_ends_both() -> None:
    """Nothing is left to come into force later."""
    made = inbox()
    made.take(claim(signed=0, at=60))
    made.take(claim(signed=30, at=140))
    assert made.take(claim("cancel", signed=50, at=None)) == "accepted"
    made.expire(minutes(72))
    assert made.notices == ()


def test_a_first_time_read_again_after_it_was_outlived_does_not_come_back() -> None:
    """A letter stays in the mailbox, and each restart reads it anew."""
    made = inbox()
    made.take(claim(signed=0, at=60))
    made.take(claim(signed=30, at=140))
    made.expire(minutes(71))
    assert made.take(claim(signed=0, received=75, at=60)) == "duplicate"
    assert deadline(made) == 140


def test_an_earlier_time_after_the_second_came_into_force_moves_it() -> None:
    """It is in force as any other."""
    made = inbox()
    made.take(claim(signed=0, at=60))
    made.take(claim(signed=30, at=140))
    made.expire(minutes(71))
    second = only(made, STRONG)
    assert made.take(claim(signed=80, at=120)) == "accepted"
    moved = only(made, STRONG)
    assert second is not None
    assert moved is not None
    assert (moved.id, deadline(made)) == (second.id, 120)


def test_of_many_times_a_few_are_kept(tmp_path: Path) -> None:
    """The file does not grow, and the earliest time and the newest word are among them."""
    path = tmp_path / "inbox.json"
    made = inbox(path)
    for number in range(100):
        made.take(claim(signed=number / 10, at=60 + number / 2))
    assert made.save()
    assert len(json.loads(path.read_bytes())["strong"]["claims"]) == 8
    assert deadline(made) == 60
    made.take(claim("cancel", signed=9.85, received=11, at=None))
    assert deadline(made) == 60 + 99 / 2


def test_the_file_of_a_version_that_kept_one_time_is_read(tmp_path: Path) -> None:
    """The notice in it is a claim as well: a cancel ends it, and one from before its last word does not."""
    path = tmp_path / "inbox.json"
    made = inbox(path)
    made.take(claim(signed=0, at=60))
    made.take(claim(signed=10, at=60))
    assert made.save()
    row = json.loads(path.read_bytes())
    row["strong"] = {
        key: value for key, value in row["strong"].items() if key not in ("claims", "outlived")
    } | {"heard_at": "2026-11-29T12:10:00Z", "heard": []}
    path.write_text(json.dumps(row))
    again = inbox(path)
    assert again.problem == ""
    assert again.take(claim("cancel", signed=5, received=11, at=None)) == "duplicate"
    assert deadline(again) == 60
    assert again.take(claim("cancel", signed=12, at=None)) == "accepted"
    assert again.notices == ()


def _arriving(said: Claim) -> Claim:
    """Return what was said as it comes, all within one minute."""
    return claim(
        said.event,
        signed=(said.signed_at - NOW).total_seconds() / 60,
        at=None if said.at is None else (said.at - NOW).total_seconds() / 60,
        received=41,
    )
