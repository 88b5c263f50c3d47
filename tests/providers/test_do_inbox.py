# SPDX-License-Identifier: Apache-2.0
"""What claims make of the notices in force: earliest times, corrections, cancels, and who may move what."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spotwatch.ledger import Ledger
from spotwatch.model import Answer, Evidence, Notice, to_rfc3339
from spotwatch.providers._do_inbox import Inbox
from spotwatch.providers._do_slot import Claim
from spotwatch.testing import FakeClock, run_virtual
from tests.providers.do_claims import OURS, STRONG, WEAK, Event, claim, deadline, inbox, minutes, only


def test_a_weak_claim_neither_moves_nor_lends_its_time() -> None:
    """An earlier weak time does not stop a trainer early, whichever of the two came first."""
    for order in ((claim(at=90), claim(evidence=WEAK, at=5)), (claim(evidence=WEAK, at=5), claim(at=90))):
        made = inbox()
        assert [made.take(one) for one in order] == ["accepted", "accepted"]
        assert (deadline(made), deadline(made, WEAK)) == (90, 120)
        assert len({notice.id for notice in made.notices}) == 2


@pytest.mark.hostile(48)
def test_a_correction_to_a_later_time_is_another_notice() -> None:
    """The old id is told as ended, so that what was planned for it is lifted."""
    made = inbox()
    made.take(claim(at=60))
    [first] = made.notices
    assert made.take(claim("correction", at=110, signed=5)) == "accepted"
    [second] = made.notices
    assert second.id != first.id
    assert made.ended == {first.id}
    assert deadline(made) == 110


@pytest.mark.hostile(48)
def test_a_correction_to_an_earlier_time_moves_the_notice() -> None:
    """It is the same event, only sooner."""
    made = inbox()
    made.take(claim(at=90))
    [first] = made.notices
    assert made.take(claim("correction", at=30, signed=5)) == "accepted"
    assert [notice.id for notice in made.notices] == [first.id]
    assert made.ended == frozenset()
    assert deadline(made) == 30


@pytest.mark.hostile(48)
def test_what_a_correction_took_back_does_not_return() -> None:
    """The mail that it corrects, come late or once more, changes nothing; a reclaim signed later does."""
    made = inbox()
    made.take(claim("correction", at=110, signed=5))
    assert made.take(claim(at=30, signed=0, received=6)) == "duplicate"
    assert deadline(made) == 110
    assert made.take(claim(at=40, signed=7)) == "accepted"
    assert deadline(made) == 40


def test_a_correction_older_than_the_last_word_postpones_nothing() -> None:
    """Order is by signature, not by arrival."""
    made = inbox()
    made.take(claim(at=60, signed=10))
    made.take(claim("correction", at=110, signed=5, received=11))
    assert deadline(made) == 60
    assert made.take(claim("correction", at=50, signed=5, received=12)) == "accepted"
    assert deadline(made) == 50


def test_a_correction_without_a_time_postpones_nothing() -> None:
    """Only a time that is said takes the place of another."""
    made = inbox()
    made.take(claim(at=60))
    made.take(claim("correction", at=None, signed=5))
    assert deadline(made) == 60


def test_a_correction_alone_is_a_notice() -> None:
    """The mail that it corrects may never have come."""
    made = inbox()
    assert made.take(claim("correction", at=30)) == "accepted"
    assert deadline(made) == 30


@pytest.mark.parametrize("event", ["correction", "cancel"])
def test_a_weak_word_postpones_and_ends_nothing_proven(event: Event) -> None:
    """What may not stop may not disarm."""
    made = inbox()
    made.take(claim(at=60))
    made.take(claim(event, WEAK, at=110, signed=5))
    assert deadline(made) == 60


def test_a_weak_cancel_ends_a_weak_notice_only() -> None:
    """It is refused where something proven stays in force, and by then the weak notice is gone."""
    made = inbox()
    made.take(claim(evidence=WEAK))
    assert made.take(claim("cancel", WEAK, at=None, signed=10)) == "accepted"
    assert not made.notices
    made.take(claim(signed=11))
    made.take(claim(evidence=WEAK, signed=11))
    assert made.take(claim("cancel", WEAK, at=None, signed=21)) == "refused"
    assert [notice.evidence for notice in made.notices] == [STRONG]


def test_weak_cancels_do_not_make_weak_notices_more_frequent() -> None:
    """Each new one is flushed at once: so a forger who alternates gets no more than one in ten minutes."""
    made = inbox()
    ids: set[str] = set()
    for number in range(3600):
        at = number / 60
        made.take(claim(evidence=WEAK, signed=at))
        ids.update(notice.id for notice in made.notices)
        made.take(claim("cancel", WEAK, at=None, signed=at))
    assert 6 <= len(ids) <= 7


@pytest.mark.hostile(48)
def test_a_proven_cancel_ends_both_that_were_said_before() -> None:
    """And what was signed before it stays ended, also when it comes after."""
    made = inbox()
    made.take(claim())
    made.take(claim(evidence=WEAK))
    ids = {notice.id for notice in made.notices}
    assert made.take(claim("cancel", at=None, signed=5)) == "accepted"
    assert not made.notices
    assert made.ended == ids
    assert made.take(claim(signed=4, received=6)) == "duplicate"
    assert made.take(claim("cancel", at=None, signed=5)) == "duplicate"
    assert not made.notices


def test_a_cancel_signed_before_the_last_reminder_ends_nothing() -> None:
    """A later mail says that it goes all the same."""
    made = inbox()
    made.take(claim(at=60, signed=0))
    made.take(claim(at=60, signed=10))
    assert made.take(claim("cancel", at=None, signed=5, received=11)) == "duplicate"
    assert deadline(made) == 60


def test_each_notice_ends_an_hour_after_its_own_deadline() -> None:
    """One that is long past does not take the other with it."""
    made = inbox()
    made.take(claim(at=90))
    made.take(claim(evidence=WEAK, at=5))
    found = []
    for at in (149, 151, 181):
        made.expire(minutes(at))
        found.append([notice.evidence for notice in made.notices])
    assert found == [[STRONG, WEAK], [WEAK], []]
    assert len(made.ended) == 2


def test_a_restart_changes_nothing(tmp_path: Path) -> None:
    """Notices, what has ended, and what was taken back are as they were."""
    path = tmp_path / "inbox.json"
    made = inbox(path)
    for one in (claim(at=60), claim(evidence=WEAK, at=5), claim("correction", at=100, signed=5)):
        made.take(one)
    assert made.save()
    again = Inbox(path)
    again.belong_to(OURS)
    assert (again.notices, again.ended) == (made.notices, made.ended)
    assert again.take(claim(at=20, signed=4, received=7)) == "duplicate"
    assert path.stat().st_mode & 0o777 == 0o600


def _version_1(notice: Notice | None, **more: Any) -> bytes:
    row = {
        "version": 1,
        "droplet_id": OURS,
        "notice": None if notice is None else notice.to_json(),
        "ended": ["digitalocean:512345678:reclaim:7"],
        "cancelled_at": None,
        **more,
    }
    return json.dumps(row).encode()


@pytest.mark.parametrize("evidence", [STRONG, WEAK])
def test_the_file_of_version_1_is_read(tmp_path: Path, evidence: Evidence) -> None:
    """One notice of either worth; a weak one gets a name of its own, and its old one is told as ended."""
    made = inbox()
    made.take(claim(at=90))
    [notice] = made.notices
    path = tmp_path / "inbox.json"
    path.write_bytes(_version_1(replace(notice, evidence=evidence)))
    again = inbox(path)
    assert again.problem == ""
    [kept] = again.notices
    assert (kept.deadline, kept.evidence) == (notice.deadline, evidence)
    assert "digitalocean:512345678:reclaim:7" in again.ended
    if evidence is STRONG:
        assert kept == notice
        assert again.take(claim(at=30)) == "accepted"
    else:
        assert kept.id != notice.id
        assert notice.id in again.ended
        again.take(claim(at=90))
        assert len({one.id for one in again.notices}) == 2


def test_the_cancel_of_version_1_still_counts(tmp_path: Path) -> None:
    """What was signed before it does not come back with the new version."""
    path = tmp_path / "inbox.json"
    path.write_bytes(_version_1(None, cancelled_at=to_rfc3339(minutes(5))))
    again = inbox(path)
    assert again.take(claim(signed=4, received=6)) == "duplicate"
    assert again.take(claim(signed=6)) == "accepted"


def test_what_a_correction_makes_of_the_cases() -> None:
    """In one poll the new case is there and the old one ends, so that at no moment nothing is in force."""

    async def main() -> None:
        ledger, made = Ledger(FakeClock()), inbox()
        names: list[str] = []
        ledger.subscribe(lambda event: names.append(event.name))

        def observe() -> list[str]:
            answer = Answer(notices=made.notices, answered=frozenset({"webhook"}), cancelled=made.ended)
            ledger.observe("digitalocean", answer, absence_withdraws=False)
            return [case.notice.id for case in ledger.open_cases()]

        made.take(claim(at=60))
        [first] = observe()
        made.take(claim("correction", at=100, signed=5))
        [second] = observe()
        assert first != second
        assert names == ["noticed", "noticed", "withdrawn"]

    run_virtual(main())


def claims(evidence: Evidence) -> st.SearchStrategy[Claim]:
    """Return claims of one worth, in any order of times."""
    return st.builds(
        claim,
        st.sampled_from(["reclaim", "cancel", "correction"]),
        st.just(evidence),
        at=st.none() | st.integers(-200, 300),
        signed=st.integers(-180, 180),
        received=st.integers(0, 180),
        message=st.sampled_from(["", "a", "b"]),
    )


@given(st.lists(claims(STRONG) | claims(WEAK) | st.integers(0, 400), max_size=40))
@example([claim(evidence=WEAK, at=1), claim(at=90), claim("cancel", WEAK, at=None, signed=100), 30])
def test_the_proven_notice_is_what_it_would_be_without_the_rest(steps: Sequence[Claim | int]) -> None:
    """Whatever weak claims come, whenever: neither its id, time and text nor what it ends differ."""
    mixed, pure = inbox(), inbox()
    for step in steps:
        if isinstance(step, int):
            mixed.expire(minutes(step))
            pure.expire(minutes(step))
            continue
        outcome = mixed.take(step)
        if step.evidence is STRONG:
            without = pure.take(step)
            assert outcome == without or {outcome, without} == {"accepted", "duplicate"}
        assert only(mixed, STRONG) == only(pure, STRONG)
        strong_ended = {one for one in mixed.ended if ":reclaim:" in one}
        assert strong_ended == {one for one in pure.ended if ":reclaim:" in one}


@given(st.lists(claims(STRONG) | claims(WEAK), max_size=20), st.integers(0, 20))
def test_a_restart_at_any_moment_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[Claim], at: int
) -> None:
    """The file holds all that decides about what is still to come."""
    path = tmp_path_factory.mktemp("inbox") / "inbox.json"
    made, unbroken = inbox(path), inbox()
    for number, step in enumerate(steps):
        if number == at:
            assert made.save()
            made = inbox(path)
        assert made.take(step) == unbroken.take(step)
        assert (made.notices, made.ended) == (unbroken.notices, unbroken.ended)
