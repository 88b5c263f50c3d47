# SPDX-License-Identifier: Apache-2.0
"""Which share a worker gets, in virtual time: leases at places of their own, watched before being taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spotwatch.errors import RunTaken, StoreError
from spotwatch.train.done.shares import Shares
from spotwatch.train.lease.form import Claim
from spotwatch.train.lease.owner import Owner
from spotwatch.train.lease.wait import Watch

from .lease_world import Shelf, Time, claim, lease, nothing, refuse, stranger

_KEY = "share-0000-of-0002/LEASE"
_OTHER = "share-0001-of-0002/LEASE"


def _shares(store: Shelf, time: Time, owner: Owner, on_lost: Callable[[RunTaken], None] = nothing) -> Shares:
    return Shares(
        store,
        2,
        owner,
        lease_seconds=60.0,
        patience_seconds=0.0,
        monotonic=time.monotonic,
        sleep=time.sleep,
        on_lost=on_lost,
    )


def _renewing(shares: Shares) -> Callable[[], None]:
    assert shares._lease is not None
    assert shares._lease._hold is not None
    return shares._lease._hold.renew


def test_each_worker_has_a_share_of_its_own() -> None:
    """Two of two are taken at once, and nobody touches LEASE."""
    store, time = Shelf(), Time()
    first, second = _shares(store, time, stranger("a")), _shares(store, time, stranger("b"))
    got = {first.take({0, 1}, nothing, nothing)[0], second.take({0, 1}, nothing, nothing)[0]}
    assert got == {0, 1}
    assert set(store.objects) == {_KEY, _OTHER}
    assert time.passed < 1
    first.release("finished")
    second.release("finished")


def test_a_worker_waits_for_whichever_is_free_first() -> None:
    """Released, it is taken within a poll, and the other one stays its holder's."""
    store, time = Shelf(), Time()
    first, second, third = (_shares(store, time, stranger(name)) for name in "abc")
    first.take({0}, nothing, nothing)
    second.take({1}, nothing, nothing)
    time.every(5, 600, first.assert_held)
    time.at(100, lambda: second.release("finished"))
    for seconds in range(15, 600, 15):
        time.at(seconds, _renewing(first))
        if seconds < 100:
            time.at(seconds, _renewing(second))
    told: list[str] = []
    share, generation = third.take({0, 1}, nothing, told.append)
    assert (share, generation) == (1, 2)
    assert 100 <= time.passed < 110
    assert told
    assert "host a" in " ".join(told) or "host b" in " ".join(told)
    for one in (first, third):
        one.release("finished")


def test_a_silent_worker_is_waited_for_once_not_twice() -> None:
    """What was seen of its lease while waiting for any of several counts: a TTL, and not another."""
    store, time = Shelf(), Time()
    dead = _shares(store, time, stranger("dead"))
    dead.take({0}, nothing, nothing)
    dead._lease.stop()  # type: ignore[union-attr]
    held = _shares(store, time, stranger("held"))
    held.take({1}, nothing, nothing)
    for seconds in range(10, 600, 10):
        time.at(seconds, _renewing(held))
    new = _shares(store, time, stranger("new"))
    assert new.take({0, 1}, nothing, nothing) == (0, 2)
    assert 60 <= time.passed < 80
    for one in (held, new):
        one.release("finished")


def test_a_share_that_was_lost_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """By whichever thread asks; and releasing it harms nobody."""
    store, time = Shelf(), Time()
    told: list[RunTaken] = []
    first = _shares(store, time, stranger("a"), told.append)
    first.take({0}, nothing, nothing)
    store.put(_KEY, claim(stranger("b")).to_bytes())
    time.sleep(61)
    with pytest.raises(RunTaken, match=_KEY):
        first.assert_held()
    assert len(told) == 1
    first.release("failed")
    assert Claim.from_bytes(store.objects[_KEY]).owner.host == "b"


def test_a_stop_ends_the_waiting() -> None:
    """Whatever `between` raises comes out, and nothing is held."""

    class _StopError(Exception):
        pass

    store, time = Shelf(), Time()
    first, second = _shares(store, time, stranger("a")), _shares(store, time, stranger("b"))
    first.take({0}, nothing, nothing)

    def between() -> None:
        if time.passed > 20:
            raise _StopError

    with pytest.raises(_StopError):
        second.take({0}, between, nothing)
    assert Claim.from_bytes(store.objects[_KEY]).owner.host == "a"
    second.release("stopped")
    first.release("finished")


def test_a_store_that_refuses_ends_the_waiting() -> None:
    """After its patience, as everywhere."""
    store, time = Shelf(), Time()
    store.before = refuse("read")
    with pytest.raises(StoreError, match="out of reach"):
        _shares(store, time, stranger("a")).take({0, 1}, nothing, nothing)


def test_a_lease_lies_where_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """And is taken at once where its silence was watched before."""
    store, time = Shelf(), Time()
    store.put(_KEY, claim(stranger("gone")).to_bytes())
    me = stranger("me")
    watch = Watch(me, 60.0)
    for _ in range(6):
        watch.see(store.objects[_KEY], time.now, time.now)
        time.sleep(13)
    taking = lease(store, time, me, key=_KEY)
    assert taking.take(nothing, nothing, watch) == 5
    assert time.passed < 80
    assert set(store.objects) == {_KEY}
    taking.release("finished")
