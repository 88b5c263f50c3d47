# SPDX-License-Identifier: Apache-2.0
"""What a mailbox holds after several letters, and that it makes of a Droplet's notices what each would have.

A Droplet may have read each object that there was, or only some, or the last one.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwatch.mail.mailbox import MAX_STRONG, Address, Letter, LetterEvent, expiry, join
from spotwatch.mail.mailbox_form import read_letters, write_letters
from spotwatch.providers._do_inbox import Inbox
from spotwatch.providers._do_letters import claim_of
from spotwatch.testing import EPOCH
from tests.mail.letters import KEY, OURS, letter

Told = tuple[LetterEvent, float | None, float]
"""An event, its time and the date of its mail, both in minutes from EPOCH."""


def told(event: LetterEvent, at: float | None, issued: float, evidence: Literal["strong", "weak"]) -> Letter:
    """Return a letter; its times are minutes from EPOCH."""
    made = letter(event, evidence=evidence, issued_at=minutes(issued), message=f"{event}{issued}")
    ends = None if at is None else minutes(at)
    return replace(made, at=ends, expires_at=expiry(ends, minutes(issued)))


def minutes(count: float) -> datetime:
    """Return the moment `count` minutes from EPOCH."""
    return EPOCH + timedelta(minutes=count)


def strong(*found: Told) -> list[Letter]:
    """Return strong letters."""
    return [told(*one, "strong") for one in found]


def joined(letters: list[Letter], *, now: datetime = EPOCH) -> tuple[Letter, ...]:
    """Return the object after all letters, written and read at each step."""
    held: tuple[Letter, ...] = ()
    for one in letters:
        raw = write_letters(join(held, one, now=now), KEY, now=now)
        held = read_letters(raw, [KEY.public], to=Address(OURS), now=now).letters
    return held


def polled(letters: list[Letter], at: set[int], *, now: datetime = EPOCH) -> float | None:
    """Return when a Droplet goes that has polled after these letters, and after the last; None: it stays."""
    made = Inbox(None)
    made.belong_to(OURS)
    for count in range(1, len(letters) + 1):
        if count not in at and count != len(letters):
            continue
        for one in joined(letters[:count], now=now):
            claim = claim_of(one, droplet_id=OURS, now=now)
            if claim is not None:
                made.take(claim)
    if not made.notices:
        return None
    assert made.notices[0].deadline is not None
    return (made.notices[0].deadline - EPOCH) / timedelta(minutes=1)


@pytest.mark.parametrize("seen", [set(), {1}, {1, 2}, {2}])
@pytest.mark.parametrize(
    ("letters", "wanted"),
    [
        ([("reclaim", 30, -5), ("cancel", None, -3), ("reclaim", 110, -1)], 110),
        ([("reclaim", 30, -5), ("correction", 110, -3), ("reclaim", 105, -1)], 105),
        ([("reclaim", 30, -5), ("cancel", None, -3), ("cancel", None, -1)], None),
        ([("reclaim", 30, -5), ("cancel", None, -3), ("correction", 100, -1)], 100),
        ([("reclaim", 30, -5), ("reclaim", 110, -3), ("reclaim", 100, -1)], 30),
        ([("reclaim", -15, -45), ("reclaim", -20, -40), ("reclaim", 115, -1)], 115),
    ],
)
def test_whatever_was_polled_the_end_is_the_same(
    letters: list[Told], wanted: float | None, seen: set[int]
) -> None:
    """What came between two polls is not lost."""
    assert polled(strong(*letters), seen) == wanted


@given(
    st.lists(st.sampled_from(["reclaim", "cancel", "correction"]), min_size=1, max_size=6),
    st.lists(st.integers(1, 110), min_size=6, max_size=6),
    st.sets(st.integers(1, 5)),
)
def test_a_droplet_that_polls_rarely_knows_what_one_does_that_polls_always(
    events: list[LetterEvent], times: list[int], seen: set[int]
) -> None:
    """In the order of their dates, letters mean the same however many of them were read."""
    found = [
        (event, None if event == "cancel" else float(time), number - 10.0)
        for number, (event, time) in enumerate(zip(events, times, strict=False))
    ]
    letters = strong(*found)
    assert polled(letters, seen) == polled(letters, set(range(1, 7)))


@pytest.mark.parametrize(("at", "issued"), [(-15, -45), (-90, -200), (-300, -330)])
def test_a_time_that_has_passed_says_nothing_of_the_next(at: float, issued: float) -> None:
    """The Droplet has outlived it, and is told when it goes now, in whichever order the mails came."""
    old, new = strong(("reclaim", at, issued), ("reclaim", 115, -1))
    for order in ([old, new], [new, old]):
        assert new.message in {one.message for one in joined(order)}
        assert polled(order, {1}) == 115


def test_a_second_notice_outlives_the_first() -> None:
    """Written before the first time has passed, and naming a later one: when the first is over, it counts."""
    made = Inbox(None)
    made.belong_to(OURS)
    for one in joined(strong(("reclaim", 30, -5), ("reclaim", 110, -1))):
        claim = claim_of(one, droplet_id=OURS, now=EPOCH)
        assert claim is not None
        made.take(claim)
    assert [notice.deadline for notice in made.notices] == [minutes(30)]
    made.expire(minutes(45))
    assert [notice.deadline for notice in made.notices] == [minutes(110)]


def test_no_more_proven_letters_than_an_object_has_room_for() -> None:
    """The newest count, and beside them the weak one."""
    many = strong(*(("reclaim", 30.0 + number, float(number)) for number in range(20)))
    held = joined([*many, told("reclaim", 110, 30, "weak")], now=minutes(25))
    assert [one.message for one in held] == [
        *(one.message for one in many[-MAX_STRONG:]),
        "reclaim30",
    ]


def test_no_date_of_a_weak_letter_keeps_the_next_from_being_told() -> None:
    """It may be forged: the one that came last is told, and a copy of it changes nothing."""
    forged, genuine = told("reclaim", 2, 0, "weak"), told("reclaim", 110, -4, "weak")
    (made,) = joined([forged, genuine])
    assert (made.message, made.at) == (genuine.message, genuine.at)
    assert joined([forged, genuine, genuine]) == (made,)
