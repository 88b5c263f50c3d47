# SPDX-License-Identifier: Apache-2.0
"""A batch whose store fails, hangs or lies: what is durable counts, and the program comes to its end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from spotwatch.errors import StoreError
from spotwatch.train import schedule

from .conftest import Daemon
from .done_help import New, do, outputs, segments
from .faulty import FaultyStore

pytestmark = [pytest.mark.usefixtures("handlers_come_back"), pytest.mark.timeout(120)]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pauses between tries be short."""
    monkeypatch.setattr(schedule, "_FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(schedule, "_MOST_PAUSE_SECONDS", 0.05)


def _refuse(store: FaultyStore, times: int) -> Callable[[str], None]:
    left = [times]

    def before(deed: str) -> None:
        if deed.startswith("put_if 0") and left[0]:
            left[0] -= 1
            raise StoreError("503 SlowDown")

    return before


def test_items_go_on_while_a_save_fails_up_to_the_bound(
    store: FaultyStore,
    new: New,
    quick: None,
    environ: dict[str, str],
    daemon: Daemon,
) -> None:
    """Then they wait; and when the store recovers, all is there."""
    done = new(every_items=8, give_up_after=None)
    with done:
        for item in done.todo(range(40)):
            if item == 1:
                store.before = _refuse(store, 6)
            assert done._work.unsaved < 8
            done.add(item, item)
    assert done.exit_code == 0
    assert sorted(outputs(store, environ)) == list(range(40))
    assert daemon.status("batch").error == ""


def test_a_store_that_never_takes_anything_ends_the_batch(
    store: FaultyStore,
    new: New,
    quick: None,
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After `give_up_after` failures in a row, with the store's own words."""
    monkeypatch.setattr("spotwatch.train.done.done_list._LAST_SECONDS", 0.2)
    done = new(every_items=4, give_up_after=3)

    def run() -> None:
        with done:
            for item in done.todo(range(100)):
                store.fail_at = "put_if 0"
                done.add(item, item)

    with pytest.raises(StoreError, match=r"403 Forbidden: put_if 00000002.jsonl \(failed 3 times\)"):
        run()
    assert done.exit_code == 76
    status = daemon.status("batch")
    assert (status.phase, status.exit_code) == ("failed", 76)


def test_a_stop_that_cannot_be_saved_ends_with_76(
    store: FaultyStore,
    new: New,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is tried for as long as there is time."""
    monkeypatch.setattr("spotwatch.train.done.done_list._LAST_SECONDS", 0.3)
    done = new(every_items=4)
    with done:
        for item in done.todo(range(100)):
            store.fail_at = "put_if 0"
            if item == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            done.add(item, item)
    assert done.exit_code == 76


def test_an_answer_that_was_lost_is_no_second_segment(
    store: FaultyStore,
    new: New,
    quick: None,
    environ: dict[str, str],
) -> None:
    """The try that seemed to fail had arrived: the next finds its own bytes."""
    lost = {"put_if 00000002.jsonl", "put_if 00000003.jsonl"}

    def after(deed: str) -> None:
        if deed in lost:
            lost.discard(deed)
            raise StoreError("the answer got lost")

    store.after = after
    assert do(new(every_items=2), range(6)) == list(range(6))
    assert not lost
    assert sorted(outputs(store, environ)) == list(range(6))
    assert len(segments(store)) == len([key for key in store.objects if key.endswith(".jsonl")]) - 1


def test_what_does_not_come_back_as_written_is_written_again(
    store: FaultyStore,
    new: New,
    quick: None,
    environ: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Durable means read back: a store that keeps other bytes than it was given is found out at once."""
    broken = ["put_if 00000002.jsonl"]

    def after(deed: str) -> None:
        if deed in broken:
            broken.remove(deed)
            key = next(key for key in store.objects if key.endswith("00000002.jsonl"))
            store.objects[key] = store.objects[key][:-1]

    store.after = after
    assert do(new(every_items=2), range(6)) == list(range(6))
    assert "00000002.jsonl is not what was written" in caplog.text
    assert sorted(outputs(store, environ)) == list(range(6))
    assert do(new(), range(6)) == []


def test_a_store_that_hangs_does_not_hold_up_the_exit(
    store: FaultyStore, new: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given its time; then the process leaves, and says that the last items are not durable."""
    for name in ("_LAST_SECONDS", "_RELEASE_SECONDS", "_CLOSE_SECONDS"):
        monkeypatch.setattr(f"spotwatch.train.done.done_list.{name}", 0.2)
    goes_on = threading.Event()

    def before(deed: str) -> None:
        if deed.startswith("put"):
            goes_on.wait(60)

    done = new(every_items=4)
    with done:
        for item in done.todo(range(100)):
            store.before = before
            if item == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            done.add(item, item)
    assert done.exit_code == 76
    goes_on.set()


@pytest.mark.parametrize(
    ("first", "others"), [("put_if LEASE", ""), ("put_if LEASE", "put_if LEASE"), ("read 0", "")]
)
def test_a_store_that_hangs_between_two_shares_makes_nobody_deaf(
    store: FaultyStore, new: New, monkeypatch: pytest.MonkeyPatch, first: str, others: str
) -> None:
    """As a share is left, or just taken: told to stop, the program comes to its end."""
    for name in (
        "done.done_list._RELEASE_SECONDS",
        "done.done_list._CLOSE_SECONDS",
        "lease.lease._JOIN_SECONDS",
    ):
        monkeypatch.setattr(f"spotwatch.train.{name}", 0.2)
    monkeypatch.setattr("spotwatch.train.attended.LEAVING_SECONDS", 0.5)
    goes_on, hangs, has_lease = threading.Event(), threading.Event(), threading.Event()

    def before(deed: str) -> None:
        if has_lease.is_set() and (deed.startswith(others) if hangs.is_set() else deed.startswith(first)):
            hangs.set()
            assert goes_on.wait(60)
        if deed == "put_if LEASE":
            has_lease.set()

    def tell() -> None:
        if hangs.wait(60):
            os.kill(os.getpid(), signal.SIGTERM)

    store.before = before
    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    done = new(shares=3, patience_seconds=60.0, lease_seconds=600.0)
    do(done, range(20))
    assert not goes_on.is_set()
    teller.join(60)
    goes_on.set()
    assert done.exit_code == 75
