# SPDX-License-Identifier: Apache-2.0
"""Holding a run in virtual time: renewing, raising, losing and releasing it, with a store that fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from spotwatch.errors import RunTaken, StoreConflict, StoreError
from spotwatch.train.lease.form import LEASE
from spotwatch.train.lease.history import History, Life
from spotwatch.train.lease.lease import Lease

from .lease_world import Shelf, Time, claim, lease, nothing, refuse, stranger, until


@pytest.fixture
def time() -> Time:
    """Return time that passes at once."""
    return Time()


@pytest.fixture(params=[True, False], ids=["conditional", "advisory"])
def store(request: pytest.FixtureRequest) -> Shelf:
    """Return an empty store that compares and swaps, and one that cannot."""
    return Shelf(is_conditional=request.param)


@pytest.fixture
def ours(store: Shelf, time: Time) -> Lease:
    """Return a lease of generation 5 that has just been taken."""
    store.write(claim(released="stopped", lived_seconds=600.0))
    made = lease(store, time)
    assert made.take(nothing, nothing) == 5
    return made


def _expire(ours: Lease, time: Time) -> None:
    time.sleep(61)
    ours.assert_held()


def test_cheap_while_fresh(ours: Lease, store: Shelf, time: Time) -> None:
    """Within a TTL of the last renewal the store is not asked, whatever it would say."""
    store.before = refuse("read", "put", "put_if")
    time.sleep(57)  # on an advisory store some of the TTL went into watching
    ours.assert_held()
    time.sleep(4)
    with pytest.raises(StoreError, match="out of reach"):
        ours.assert_held()
    store.before = nothing
    ours.assert_held()


def test_expired_unchanged_is_taken_again(ours: Lease, store: Shelf, time: Time) -> None:
    """After hours without a renewal nobody else came: the run is still ours, in the same generation."""
    before = store.claim()
    time.sleep(10_000)
    ours.assert_held()
    after = store.claim()
    assert after.beat > before.beat
    assert after.generation == ours.generation == 5
    assert after.lived_seconds == pytest.approx(10_000, abs=3)
    assert after.taken_at == before.taken_at


def test_taken_by_another(ours: Lease, store: Shelf, time: Time, caplog: pytest.LogCaptureFixture) -> None:
    """Who, where and when is in the error; it stays lost, is told once, and nothing is written any more."""
    lost: list[RunTaken] = []
    ours.on_lost = lost.append
    theirs = claim(stranger("other"), generation=6)
    store.write(theirs)
    time.sleep(61)
    for _ in range(3):
        with pytest.raises(RunTaken, match=r"host other, pid 7 .* 2026-11-29T12:00.* 6, ours is 5"):
            ours.assert_held()
    with pytest.raises(RunTaken):
        ours.raise_to(50)
    ours.release("stopped")
    assert len(lost) == 1
    assert store.claim() == theirs
    assert next(record.levelname for record in caplog.records if "other" in record.message) == "ERROR"


def test_taken_by_another_who_is_done(ours: Lease, store: Shelf, time: Time) -> None:
    """A run that another machine had meanwhile is not ours again because that one has released it."""
    store.write(claim(stranger("other"), generation=6, released="finished"))
    time.sleep(61)
    with pytest.raises(RunTaken):
        ours.assert_held()


def test_overwritten_with_garbage(ours: Lease, store: Shelf, time: Time) -> None:
    """It may be a later version's claim: whoever it was, the run is not certainly ours."""
    store.put(LEASE, b'{"version": 2}')
    time.sleep(61)
    with pytest.raises(RunTaken, match="unknown"):
        ours.assert_held()


def test_removed_by_hand(ours: Lease, store: Shelf, time: Time) -> None:
    """A lease that somebody deleted is nobody's, so still ours, and is written anew."""
    store.delete(LEASE)
    _expire(ours, time)
    assert store.claim().generation == 5
    assert store.claim().owner == ours.owner


def test_removed_and_taken(ours: Lease, store: Shelf, time: Time) -> None:
    """Deleted, and taken by another in a first generation, it is lost though ours is higher."""
    store.delete(LEASE)
    store.write(claim(stranger("other"), generation=1))
    time.sleep(61)
    with pytest.raises(RunTaken, match="generation 1, ours is 5"):
        ours.assert_held()


def test_an_answer_that_got_lost(ours: Lease, store: Shelf, time: Time) -> None:
    """A renewal that arrived although an error came back is not a stranger's."""
    store.after = refuse("put", "put_if")
    time.sleep(61)
    with pytest.raises(StoreError):
        ours.assert_held()
    store.after = nothing
    ours.assert_held()
    assert store.claim().owner == ours.owner


def test_an_old_write_that_arrives_late(ours: Lease, store: Shelf, time: Time) -> None:
    """The first of three renewals arrives when all were given up: the beat is behind, and it is ours."""
    held: list[bytes] = []
    put = store.put_if if store.is_conditional else store.put

    def lose(key: str, body: bytes, version: str | None = None) -> str:
        held.append(body)
        raise StoreError("timed out")

    setattr(store, put.__name__, lose)
    time.sleep(61)
    for _ in range(3):
        with pytest.raises(StoreError):
            ours.assert_held()
    delattr(store, put.__name__)
    store.put(LEASE, held[0])
    ours.assert_held()
    assert store.claim().to_bytes() not in held


def test_a_copy_of_this_process(ours: Lease, store: Shelf, time: Time) -> None:
    """A machine cloned with its memory has our writer, and still only one of the two goes on."""
    store.write(replace(store.claim(), beat=store.claim().beat + 1000))
    time.sleep(61)
    with pytest.raises(RunTaken):
        ours.assert_held()


def test_a_store_that_conflicts_for_ever(ours: Lease, store: Shelf, time: Time) -> None:
    """A conflict with nobody is trouble with the store: not a loss, and not an endless loop."""

    def conflict(deed: str) -> None:
        if deed in ("put", "put_if"):
            raise StoreConflict("so it says")

    store.before = conflict
    time.sleep(61)
    with pytest.raises(StoreError, match="does not stay") as caught:
        ours.assert_held()
    assert not isinstance(caught.value, RunTaken)


def test_raised_above_what_the_run_has_seen(ours: Lease, store: Shelf) -> None:
    """Directories of generation 40 although the lease began at 5: ours is 41, in the store too."""
    assert ours.raise_to(4) == 5
    assert ours.raise_to(5) == 6
    assert ours.raise_to(40) == 41 == ours.generation == store.claim().generation


def test_raising_an_answer_that_got_lost(ours: Lease, store: Shelf, time: Time) -> None:
    """What was raised in the store is so here, too, as soon as it is known."""
    store.after = refuse("put", "put_if")
    with pytest.raises(StoreError):
        ours.raise_to(40)
    store.after = nothing
    time.sleep(61)
    ours.assert_held()
    assert ours.generation == 41 == store.claim().generation
    assert ours.raise_to(40) == 41 == store.claim().generation


@pytest.mark.parametrize("ended", ["stopped", "finished", "failed"])
def test_released(ours: Lease, store: Shelf, time: Time, ended: str) -> None:
    """The next one takes it at once and knows how long this life was and how it ended."""
    time.sleep(100)
    ours.release(ended)
    assert store.claim().released == ended
    with pytest.raises(StoreError, match="released"):
        ours.assert_held()
    with pytest.raises(StoreError, match="released"):
        ours.start()
    begin = time.passed
    other = lease(store, time, stranger("other"))
    assert other.take(nothing, nothing) == 6
    assert time.passed - begin < 2.1
    first, second, third = other.history.lives
    assert (first, second.ended, third.ended) == (Life(600.0, "stopped"), ended, "")
    assert second.seconds == pytest.approx(100, abs=3)


def test_released_without_a_store(ours: Lease, store: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    """A release that fails is logged and harms nobody but the next, who waits."""
    store.before = refuse("read", "put", "put_if")
    ours.release("stopped")
    assert "not released" in caplog.text
    with pytest.raises(ValueError, match="stopped"):
        ours.release("bored")


def test_never_taken(store: Shelf, time: Time) -> None:
    """Nothing may be written without a lease, and there is nothing to give back."""
    ours = lease(store, time)
    for deed in (ours.assert_held, ours.start, lambda: ours.raise_to(1), lambda: ours.generation):
        with pytest.raises(StoreError, match="take"):
            deed()
    assert ours.history == History()
    ours.stop()
    ours.release("failed")
    assert store.objects == {}


def test_the_present_life_counts(ours: Lease, time: Time) -> None:
    """A run that has lived on for days without a loss is lost more seldom than was assumed."""
    before = ours.history.reclaim_every_seconds()
    time.sleep(86400)
    assert ours.history.reclaim_every_seconds() == pytest.approx(before + 86400)


def test_twenty_lives_are_kept(time: Time) -> None:
    """A run that changes machines for ever has a LEASE of a bounded size."""
    store = Shelf()
    for number in range(50):
        one = lease(store, time, stranger(f"host-{number}"))
        assert one.take(nothing, nothing) == number + 1
        time.sleep(10)
        one.release("stopped")
    assert store.claim().history.lives == (Life(10.0, "stopped"),) * 20


def test_renewals_and_questions_do_not_overlap(time: Time) -> None:
    """Many threads ask at the same moment: one renews, the others find it done."""
    store = Shelf()
    ours = lease(store, time)
    ours.take(nothing, nothing)
    time.sleep(61)
    writes: list[str] = []

    def write(deed: str) -> None:
        writes.append(deed)
        # All have found the renewal old: one has asked thrice by now, the others wait for the lock.
        until(lambda: time.asked >= asked + 3 + 15)

    asked = time.asked
    store.before = write
    _at_once([ours.assert_held] * 16)
    assert writes == ["put_if"]


def test_the_loss_is_told_once_whoever_learns_it(time: Time) -> None:
    """All threads get the error, the callback comes once."""
    store = Shelf()
    ours = lease(store, time)
    ours.take(nothing, nothing)
    lost: list[RunTaken] = []
    ours.on_lost = lost.append
    store.write(claim(stranger("other"), generation=2))
    time.sleep(61)
    errors: list[RunTaken] = []

    def ask() -> None:
        try:
            ours.assert_held()
        except RunTaken as error:
            errors.append(error)

    _at_once([ask] * 16)
    assert (len(errors), len(lost)) == (16, 1)


def _at_once(deeds: list[Callable[[], None]]) -> None:
    gate = threading.Barrier(len(deeds))
    failures: list[BaseException] = []

    def run(deed: Callable[[], None]) -> None:
        gate.wait(10)
        try:
            deed()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=run, args=(deed,)) for deed in deeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not failures
