# SPDX-License-Identifier: Apache-2.0
"""Taking a run in virtual time: at once where that is safe, after a TTL of silence where it is not."""

from __future__ import annotations

import itertools
import json
import logging
from dataclasses import replace

import pytest

from spotwatch.errors import CheckpointCorrupt, ConfigError, StoreConflict, StoreError
from spotwatch.train.lease.form import LEASE, MOST_GENERATION, MOST_LEASE_BYTES
from spotwatch.train.lease.history import History, Life
from spotwatch.train.lease.lease import Lease, read
from spotwatch.train.lease.owner import Owner

from .lease_world import Shelf, Time, claim, lease, nothing, refuse, stranger


@pytest.fixture
def time() -> Time:
    """Return time that passes at once."""
    return Time()


@pytest.fixture
def store() -> Shelf:
    """Return an empty store."""
    return Shelf()


class StopError(Exception):
    """A stop was ordered."""


def test_a_fresh_run_is_taken_at_once(store: Shelf, time: Time) -> None:
    """Where nobody ever was, nobody is waited for, and what is written says who and since when."""
    ours = lease(store, time)
    told: list[str] = []
    assert ours.take(nothing, told.append) == 1 == ours.generation
    assert (time.passed, told) == (0, [])
    assert (store.claim().owner, store.claim().released) == (ours.owner, "")
    assert store.claim().ttl_seconds == 60
    assert read(store) == store.claim()


@pytest.mark.parametrize("ended", ["stopped", "finished", "failed"])
def test_a_released_run_is_taken_at_once(store: Shelf, time: Time, ended: str) -> None:
    """The one before said that it is done: the next generation begins, and its life is remembered."""
    store.write(claim(released=ended, history=History((Life(7.0, "lost"),))))
    assert lease(store, time).take(nothing, nothing) == 5
    assert time.passed == 0
    assert store.claim().history.lives == (Life(7.0, "lost"), Life(600.0, ended))


def test_a_silent_holder_is_waited_for(store: Shelf, time: Time) -> None:
    """Unchanged for its TTL, no less and hardly more, it is taken over, and counts as lost."""
    store.write(claim(ttl_seconds=48.0))
    told: list[str] = []
    ours = lease(store, time)
    assert ours.take(nothing, told.append) == 5
    assert 48 <= time.passed < 48.5
    (text,) = told
    assert text == (
        "the run is held by host far, pid 7, since 2026-11-29T12:00:00.000Z; it is taken over at the latest "
        "in 48 s unless it is renewed"
    )
    assert store.claim().history.lives == (Life(600.0, "lost"),)
    assert ours.history.lives[0] == Life(600.0, "lost")


def test_its_own_clock_counts(store: Shelf, time: Time) -> None:
    """Moments in the lease, however old or far in the future, shorten and lengthen nothing."""
    for at in ("1970-01-01T00:00:00Z", "2999-01-01T00:00:00Z", "once"):
        store.write(claim(taken_at=at, renewed_at=at))
        begin = time.passed
        lease(store, time).take(nothing, nothing)
        assert 60 <= time.passed - begin < 61


def test_a_live_holder_is_waited_for_until_it_dies(store: Shelf, time: Time) -> None:
    """Each renewal begins the wait anew; people are told when something new is known, not at each beat."""
    beats = iter(range(10, 100))
    store.write(claim())
    time.every(15, 600, lambda: store.write(claim(beat=next(beats))))
    told: list[str] = []
    assert lease(store, time).take(nothing, told.append) == 5
    assert 600 + 60 <= time.passed < 600 + 60 + 6
    assert ["alive" in text for text in told] == [False, True, False]
    assert "in 3" in told[2] or "in 2" in told[2], "half of the TTL or less is left"


def test_a_live_holder_that_releases(store: Shelf, time: Time) -> None:
    """A wait ends a few seconds after the release."""
    store.write(claim())
    time.at(31, lambda: store.write(claim(beat=10, released="stopped")))
    assert lease(store, time).take(nothing, nothing) == 5
    assert 31 <= time.passed < 31 + 6.5


def test_another_newcomer_was_quicker(store: Shelf, time: Time) -> None:
    """The wait begins anew for whoever took it, and is told."""
    store.write(claim())
    time.at(59, lambda: store.write(claim(stranger("other"), generation=5, ttl_seconds=30.0)))
    told: list[str] = []
    assert lease(store, time).take(nothing, told.append) == 6
    assert 59 + 30 <= time.passed < 59 + 30 + 6
    assert ["far" in told[0], "other" in told[1]] == [True, True]


def test_quicker_between_reading_and_writing(store: Shelf, time: Time) -> None:
    """Compare and swap decides, and the one who lost waits like any other."""
    store.write(claim(released="stopped"))

    def overtake(deed: str) -> None:
        if deed == "put_if":
            store.before = nothing
            store.write(claim(stranger("other"), generation=5))

    store.before = overtake
    assert lease(store, time).take(nothing, nothing) == 6
    assert 60 <= time.passed < 62


def test_dead_on_this_machine(store: Shelf, time: Time) -> None:
    """A process of this machine that is gone is not waited for."""
    gone = replace(Owner.here("gone"), pid=4_194_303, start_ticks=5)
    store.write(claim(gone))
    assert lease(store, time).take(nothing, nothing) == 5
    assert time.passed == 0
    assert store.claim().history.lives == (Life(600.0, "lost"),)


def test_an_earlier_lease_of_this_process(store: Shelf, time: Time) -> None:
    """A Checkpointer that was thrown away is not waited for by its successor, and was not lost."""
    first = lease(store, time)
    assert first.take(nothing, nothing) == 1
    time.sleep(30)
    assert lease(store, time).take(nothing, nothing) == 2
    assert time.passed == 30
    assert store.claim().history.lives == (Life(0.0, "stopped"),)


def test_taken_again_by_itself(store: Shelf, time: Time) -> None:
    """A second resume is a new life, whether the first was released or not."""
    # A stranger to /proc: also where a process cannot be looked up, its own writer is known.
    ours = lease(store, time, stranger())
    assert [ours.take(nothing, nothing), ours.take(nothing, nothing)] == [1, 2]
    ours.release("finished")
    assert ours.take(nothing, nothing) == 3
    ours.assert_held()


def _damaged() -> list[bytes]:
    row = json.loads(claim().to_bytes())
    return [
        b"",
        b"not json",
        b"\0" * 300,
        json.dumps(row | {"generation": 10**12}).encode(),
        json.dumps(row | {"ttl_seconds": 365 * 86400}).encode(),
        json.dumps(row | {"version": 2}).encode(),
        b"x" * (MOST_LEASE_BYTES + 1),
    ]


@pytest.mark.parametrize("body", _damaged(), ids=lambda body: body[:20].decode())
@pytest.mark.parametrize("is_conditional", [True, False])
def test_damaged_is_somebodys_for_one_ttl_of_ours(time: Time, body: bytes, *, is_conditional: bool) -> None:
    """It is replaced when it has not changed for so long; its generation counts only when it can be one."""
    store = Shelf(is_conditional=is_conditional)
    store.put(LEASE, body)
    told: list[str] = []
    generation = lease(store, time).take(nothing, told.append)
    assert generation == (5 if b'"generation": 4,' in body else 1)
    assert 60 <= time.passed < 63
    assert len(told) == 1
    assert "at the latest in 60 s" in told[0]
    assert store.claim().history == History()


def test_damaged_but_changing(store: Shelf, time: Time) -> None:
    """A later version's holder renews what we cannot read: it is left alone for as long as it does."""
    row = json.loads(claim().to_bytes()) | {"version": 2}
    store.put(LEASE, json.dumps(row).encode())
    time.every(20, 400, lambda: store.put(LEASE, json.dumps(row | {"beat": time.now}).encode()))
    assert lease(store, time).take(nothing, nothing) == 5
    assert 460 <= time.passed < 466


def test_the_highest_generation_is_nobodys_count(store: Shelf, time: Time) -> None:
    """One that leaves no next is counted from the beginning, and the directories are looked at later."""
    store.write(claim(generation=MOST_GENERATION, released="stopped"))
    ours = lease(store, time)
    assert ours.take(nothing, nothing) == 1
    assert ours.raise_to(MOST_GENERATION - 1) == MOST_GENERATION
    with pytest.raises(StoreError, match="another run_id"):
        ours.raise_to(MOST_GENERATION)


def test_asked_often_whether_to_go_on(store: Shelf, time: Time) -> None:
    """While it waits it asks at least four times a second, and few questions go to the store."""
    store.write(claim())
    asked: list[float] = []
    reads: list[str] = []
    store.before = reads.append
    lease(store, time).take(lambda: asked.append(time.now), nothing)
    assert max(b - a for a, b in itertools.pairwise(asked)) <= 0.25
    assert len(reads) < 25


def test_a_stop_while_waiting(store: Shelf, time: Time) -> None:
    """What `between` raises comes out at once, and the lease is as it was."""
    store.write(claim())

    def between() -> None:
        if time.passed > 20:
            raise StopError

    ours = lease(store, time)
    with pytest.raises(StopError):
        ours.take(between, nothing)
    assert time.passed < 20.5
    assert store.claim() == claim()
    with pytest.raises(StoreError, match="take"):
        ours.assert_held()
    ours.release("stopped")
    assert store.claim() == claim()


def test_an_answer_that_got_lost(store: Shelf, time: Time) -> None:
    """What was written although an error came back is found, and nobody is waited for."""
    lost = [True]

    def lose(deed: str) -> None:
        if deed == "put_if" and lost.pop():
            raise StoreError("timed out")

    store.after = lose
    ours = lease(store, time, patience_seconds=60)
    lost.append(False)
    lost.append(True)
    assert ours.take(nothing, nothing) == 1
    store.after = nothing
    ours.assert_held()
    assert time.passed < 3


def test_an_answer_that_was_repeated(store: Shelf, time: Time) -> None:
    """A client that sent it twice hears of a conflict with itself, and holds it all the same."""

    def repeat(deed: str) -> None:
        if deed == "put_if":
            store.after = nothing
            raise StoreConflict("the second time")

    store.after = repeat
    assert lease(store, time).take(nothing, nothing) == 1
    assert store.claim().generation == 1


def test_a_store_that_refuses_is_asked_for_a_while(store: Shelf, time: Time) -> None:
    """Trouble that passes is waited out; with the patience at its end, it is raised."""
    store.before = refuse("read")
    time.at(9, lambda: setattr(store, "before", nothing))
    assert lease(store, time).take(nothing, nothing) == 1
    store.before = refuse("put_if")
    with pytest.raises(StoreError, match="put_if: out of reach"):
        lease(store, time, patience_seconds=0).take(nothing, nothing)


def test_a_store_that_conflicts_for_ever(store: Shelf, time: Time) -> None:
    """A conflict though nothing changed is trouble with the store, not a race to be run without end."""

    def refuse_writes(deed: str) -> None:
        if deed == "put_if":
            raise StoreConflict("so it says")

    store.before = refuse_writes
    with pytest.raises(StoreError, match="nothing there has changed"):
        lease(store, time, patience_seconds=0).take(nothing, nothing)


def test_an_outage_is_not_the_holders_silence(store: Shelf, time: Time) -> None:
    """A holder that could not renew, for the store was down for all, has time to when it is back."""
    store.write(claim())
    time.at(10, lambda: setattr(store, "before", refuse("read")))
    time.at(50, lambda: setattr(store, "before", nothing))
    lease(store, time).take(nothing, nothing)
    assert time.passed >= 60 + (50 - 10) - 60 / 4 - 5


class TestAdvisory:
    """A store without conditional writes."""

    @pytest.fixture
    def store(self) -> Shelf:
        """Return one that cannot compare; asked to, it fails the test."""
        return Shelf(is_conditional=False)

    def test_writes_and_looks_twice(self, store: Shelf, time: Time, caplog: pytest.LogCaptureFixture) -> None:
        """It is ours when it has stood for a moment, twice; the log says once what that is worth."""
        with caplog.at_level(logging.WARNING):
            assert lease(store, time).take(nothing, nothing) == 1
        assert 0.4 <= time.passed <= 2.1
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "no conditional writes" in caplog.text

    @pytest.mark.parametrize("deed", [1, 2])
    def test_overwritten_meanwhile(self, store: Shelf, time: Time, deed: int) -> None:
        """Who wrote last has it; the other waits for it."""
        seconds = 0.1 if deed == 1 else 0.4
        time.at(seconds, lambda: store.write(claim(stranger("other"), ttl_seconds=30.0, generation=8)))
        assert lease(store, time).take(nothing, nothing) == 9
        assert 30 <= time.passed < 36

    def test_a_stop_in_the_midst(self, store: Shelf, time: Time) -> None:
        """What was written, and not yet held, is given back."""

        def between() -> None:
            if LEASE in store.objects:
                raise StopError

        with pytest.raises(StopError):
            lease(store, time).take(between, nothing)
        assert store.claim().released == "stopped"
        assert lease(store, time, stranger("other")).take(nothing, nothing) == 2


@pytest.mark.parametrize(
    ("ttl", "renew"), [(60, 30), (60, 0), (0, 0), (-3, -1), (7200, 15), (float("nan"), 1)]
)
def test_times_that_do_not_go_together(store: Shelf, ttl: float, renew: float) -> None:
    """A lease that would run out between renewals is refused."""
    with pytest.raises(ConfigError, match="lease"):
        Lease(store, stranger(), ttl_seconds=ttl, renew_seconds=renew)


def test_reading_for_people(store: Shelf) -> None:
    """The command line sees what is there: nothing, a claim, or damage by name."""
    assert read(store) is None
    store.write(claim())
    assert read(store) == claim()
    store.put(LEASE, b"?")
    with pytest.raises(CheckpointCorrupt, match="LEASE"):
        read(store)
