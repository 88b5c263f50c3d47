# SPDX-License-Identifier: Apache-2.0
"""Requests that can be left: who waits and looks meanwhile, what silence is, what a left one still does."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from spotwatch.errors import StoreError, StoreMissing, StoreSilent
from spotwatch.train import attendance, attended
from spotwatch.train.attended import AttendedStore
from spotwatch.train.lease.form import LEASE
from spotwatch.train.registry.download import fetch
from spotwatch.train.registry.manifest import File
from spotwatch.train.registry.patience import patiently

from .bulk_help import wait_for
from .conftest import Daemon, Make
from .faulty import FaultyStore
from .lease_world import claim
from .s3_stand_in import Call, Reply, S3StandIn, refusal
from .s3_stores import store_at


class _LeaveError(Exception):
    """A stop was ordered."""


class Time:
    """The clock of silence, and a store in which it passes."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """Return it."""
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    """Return the clock by which silence is measured."""
    made = Time()
    monkeypatch.setattr(attendance, "now", made)
    return made


@pytest.fixture
def over() -> Iterator[threading.Event]:
    """Return what requests that hang wait for; it comes with the end of the test."""
    made = threading.Event()
    yield made
    made.set()
    wait_for(lambda: not _asking())


def _asking() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "spotwatch-ask"]


def _nothing() -> None:
    """No stop is ordered."""


def test_only_the_thread_that_is_attended_is_left(over: threading.Event) -> None:
    """Another thread of the same time asks for itself, in its own thread."""
    store = FaultyStore()
    asked_by: list[str] = []
    store.before = lambda deed: asked_by.append(threading.current_thread().name)
    watched = AttendedStore(store)
    watched.put("a", b"1")
    with watched.attending(_nothing, 60.0):
        watched.put("a", b"2")
        other = threading.Thread(target=watched.put, args=("a", b"3"), name="other")
        other.start()
        other.join()
    watched.put("a", b"4")
    assert asked_by == ["MainThread", "spotwatch-ask", "other", "MainThread"]


def test_what_is_answered_comes_through() -> None:
    """Values and errors are those of the store, whether attended or not."""
    store = FaultyStore()
    watched = AttendedStore(store)
    with watched.attending(_nothing, 60.0):
        assert watched.is_conditional
        version = watched.put_if("a", b"1", None)
        assert watched.read("a", most_bytes=9) == (b"1", version)
        assert watched.get("a", most_bytes=9) == b"1"
        assert watched.size_bytes("a") == 1
        assert [entry.key for entry in watched.list()] == ["a"]
        watched.delete("a")
        assert watched.abort_uploads() == 0
        with pytest.raises(StoreMissing):
            watched.get("a", most_bytes=9)


def test_refusals_and_silence_are_one_patience(clock: Time, over: threading.Event) -> None:
    """A store that refused for most of the time and then says nothing is not waited for anew."""
    store = FaultyStore()
    refusals = iter(range(5))

    def before(deed: str) -> None:
        clock.seconds += 10.0
        if next(refusals, None) is not None:
            raise StoreError("503 SlowDown")
        over.wait(60)

    store.before = before
    watched = AttendedStore(store)

    def look() -> None:
        if clock.seconds == 60.0:  # the request that hangs is under way
            clock.seconds = 70.0 - 1e-6

    with watched.attending(look, 60.0), pytest.raises(StoreSilent, match=r"read memory:///a: .* for 70 s"):
        patiently(lambda: watched.get("a", most_bytes=9), 1e9, lambda _: None)
    assert len(store.deeds) == 6


def test_an_answer_ends_the_silence_before_it(clock: Time) -> None:
    """Each request that is answered in time has the whole patience again."""
    store = FaultyStore()
    watched = AttendedStore(store)
    store.before = lambda deed: setattr(clock, "seconds", clock.seconds + 50.0)
    with watched.attending(_nothing, 60.0):
        for body in (b"1", b"2", b"3"):
            watched.put("a", body)
    assert store.objects["a"] == b"3"


def test_after_the_order_to_leave_there_is_little_time_for_all_the_rest(
    clock: Time, over: threading.Event
) -> None:
    """What is given back then is not waited for long, and is not stopped by the same order."""
    store = FaultyStore()
    watched = AttendedStore(store)
    hangs = threading.Event()

    def before(deed: str) -> None:
        if hangs.is_set():
            clock.seconds += attended.LEAVING_SECONDS
            over.wait(60)

    store.before = before

    def leave() -> None:
        raise _LeaveError

    with watched.attending(leave, 60.0) as look:
        with pytest.raises(_LeaveError):
            look()
        watched.put("a", b"1")
        hangs.set()
        with pytest.raises(StoreSilent, match="in the time that there was"):
            watched.put("a", b"2")


def test_a_request_that_was_left_is_not_tried_again(
    server: S3StandIn, made_up_keys: None, over: threading.Event
) -> None:
    """Whoever left believes that nothing is written any more."""

    def hang(call: Call) -> Reply:
        over.wait(60)
        return refusal(503, "SlowDown")

    server.fault = hang
    store = store_at(server.url)
    watched = AttendedStore(store)

    def leave() -> None:
        if server.calls:
            raise _LeaveError

    with watched.attending(leave, 60.0), pytest.raises(_LeaveError):
        watched.put("LATEST", b"1")
    over.set()
    wait_for(lambda: not _asking())
    assert len(server.calls) == 1
    store.close()


class _Trickle(FaultyStore):
    """Sends an object in pieces, each after almost as long as there is patience.

    Args:
        clock: by which that passes.
        signs: whether it says so.
    """

    def __init__(self, clock: Time, over: threading.Event | None) -> None:
        super().__init__()
        self.clock = clock
        self.over = over

    def read_into(self, key: str, begin: int, target: memoryview) -> None:
        """Move on, or not."""
        for at in range(len(target)):
            self.clock.seconds += 50.0
            if self.over is None:
                attendance.moved()
            else:
                self.over.wait(60)
            target[at] = self.objects[key][begin + at]


def test_a_download_that_moves_is_waited_for(clock: Time) -> None:
    """However long a part takes: what counts is that something comes."""
    store = _Trickle(clock, None)
    store.objects["a"] = b"0123456789"
    target = bytearray(10)
    file = File.of("a", 10, 10, ("a684c7c6",))
    fetch(store, "a", file, memoryview(target), _nothing, patience_seconds=60.0)
    assert bytes(target) == b"0123456789"


def test_a_download_that_stands_still_is_not(clock: Time, over: threading.Event) -> None:
    """Patience is for a store that refuses and for one that says nothing."""
    store = _Trickle(clock, over)
    store.objects["a"] = b"0123456789"
    file = File.of("a", 10, 10, ("a684c7c6",))

    def look() -> None:
        if clock.seconds:  # the request is under way
            clock.seconds = 65.0

    with pytest.raises(StoreSilent, match=r"read memory:///a: the store has not answered for 65 s"):
        fetch(store, "a", file, memoryview(bytearray(10)), look, patience_seconds=60.0)


def test_a_stop_while_the_lease_is_waited_for_and_the_store_hangs(
    make: Make, daemon: Daemon, over: threading.Event, handlers_come_back: None
) -> None:
    """The look at the lease of another machine is left as any request is."""
    store = FaultyStore()
    store.put(LEASE, claim(ttl_seconds=4.0).to_bytes())
    store.deeds.clear()

    def before(deed: str) -> None:
        if deed == "read LEASE" and store.deeds.count(deed) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            over.wait(60)

    store.before = before
    ck, counter = make(store, patience_seconds=1e9)
    with pytest.raises(SystemExit) as left:
        ck.resume()
    assert (left.value.code, counter.steps) == (76, [])
    assert daemon.status().phase == "failed"
