# SPDX-License-Identifier: Apache-2.0
"""What a batch does when it is told: by the daemon's files, by a flag, by signals, by a store in trouble."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spotwatch.errors import StoreError
from spotwatch.handshake import FLAG
from spotwatch.model import Do
from spotwatch.train import schedule
from spotwatch.train.done.segment import Segment

from .conftest import Daemon
from .done_help import New, do, maker, outputs, segments
from .done_lives import batch
from .faulty import FaultyStore
from .lease_world import stranger, until

pytestmark = [pytest.mark.usefixtures("handlers_come_back"), pytest.mark.timeout(120)]


@pytest.fixture
def store() -> FaultyStore:
    """Return an empty store."""
    return FaultyStore()


@pytest.fixture
def new(store: FaultyStore, environ: dict[str, str]) -> New:
    """Return a maker of lists on one store, as after a restart."""
    return maker(store, environ)


def test_a_flush_is_answered_within_an_item(
    store: FaultyStore,
    new: New,
    daemon: Daemon,
    environ: dict[str, str],
) -> None:
    """However long the item takes: what was added before it is durable, and said to be."""
    done = new(every_items=1000, every_seconds=1000)
    with done:
        for item in done.todo(range(4)):
            if item == 2:
                daemon.flag(5)
                daemon.order(Do.FLUSH, 5)
                status = daemon.wait(lambda status: status.saved.seq == 5, "batch")
                assert status.saved.step == 2
                assert status.saved.url.endswith(segments(store)[-1])
                assert status.saved.at is not None
                until(lambda: not (daemon.runtime_dir / FLAG).exists())
                assert sorted(outputs(store, environ)) == [0, 1]
            if item == 3:
                daemon.order(Do.FLUSH, 6)
                daemon.wait(lambda status: status.saved.seq == 6, "batch")
                assert sorted(outputs(store, environ)) == [0, 1, 2]
            done.add(item, item)
    assert done.exit_code == 0
    assert daemon.status("batch").phase == "finished"
    assert daemon.status("batch").step == 4


def test_a_flag_by_hand_is_answered_though_nothing_is_unsaved(new: New, daemon: Daemon) -> None:
    """There is nothing to save, and that is said."""
    done = new()
    with done:
        for item in done.todo(range(2)):
            if item == 0:
                (daemon.runtime_dir / FLAG).touch()
                until(lambda: not (daemon.runtime_dir / FLAG).exists())
            done.add(item, item)


def test_a_flush_is_answered_before_the_first_loop(new: New, daemon: Daemon) -> None:
    """A model may take minutes to load; there is nothing to save, and that is said, in each life."""
    done = new()
    for seq in (5, 7):
        with done:
            daemon.order(Do.FLUSH, seq)
            daemon.wait(lambda status, seq=seq: status.saved.seq == seq, "batch")  # type: ignore[misc]  # at once
            for item in done.todo(range(seq)):
                done.add(item, item)
            daemon.order(Do.FLUSH, seq + 1)
            daemon.wait(lambda status, seq=seq: status.saved.seq == seq + 1, "batch")  # type: ignore[misc]  # as above
        assert done.exit_code == 0


def test_a_stop_ends_the_loop_before_the_next_item(
    store: FaultyStore,
    new: New,
    daemon: Daemon,
    environ: dict[str, str],
) -> None:
    """The item under way is finished and saved; the answer is given when that is durable."""
    done = new(every_items=1000, every_seconds=1000)
    taken = []
    with done:
        for item in done.todo(range(9)):
            taken.append(item)
            if item == 3:
                daemon.order(Do.STOP, 7, why="reclaim")
                daemon.wait(lambda status: status.phase == "seen", "batch")
                assert done.poll()
                assert daemon.status("batch").saved.seq < 7
            done.add(item, item)
    assert taken == [0, 1, 2, 3]
    assert done.exit_code == 75
    status = daemon.status("batch")
    assert (status.phase, status.exit_code, status.saved.seq, status.saved.step) == ("durable", 75, 7, 4)
    assert sorted(outputs(store, environ)) == [0, 1, 2, 3]


def test_a_stop_at_the_start_begins_nothing(new: New, daemon: Daemon) -> None:
    """The machine is going: what is durable stays so, and the process leaves at once."""
    (daemon.runtime_dir / "draining").touch()
    daemon.order(Do.STOP, 3)
    done = new()
    with pytest.raises(SystemExit) as left:
        done.__enter__()
    assert left.value.code == 75
    assert done.exit_code == 75
    assert daemon.status("batch").saved.seq == 3


def test_a_stop_while_another_has_the_list(store: FaultyStore, new: New) -> None:
    """Waiting is no reason to be deaf."""
    first, second = new(), new(lease_seconds=60.0)
    second._work._owner = stranger()
    with first:
        for item in first.todo(range(3)):
            if item == 1:
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
                assert do(second, range(3)) == []
                assert second.exit_code == 75
            first.add(item, item)
    assert first.exit_code == 75


def test_a_signal_costs_nothing_and_poll_breaks_a_long_item_off(tmp_path: Path) -> None:
    """The item that is broken off is the only one begun twice."""
    with batch(tmp_path, items=8, every_items=1000, every_seconds=1000) as made:
        pid = made.start(long_item=5, polls=True)
        made.wait(lambda: made.count() == 6)
        os.kill(pid, signal.SIGTERM)
        made.end(pid, 75)
        assert sorted(output["number"] for output in made.outputs().values()) == [0, 1, 2, 3, 4]
        made.run()
        made.expect_all(8)
        assert made.redone() == {1: 1}


def test_a_flag_in_a_long_item_spares_all_before_it(tmp_path: Path) -> None:
    """Then SIGKILL: only the item under way is done again."""
    with batch(tmp_path, items=40, every_items=1000, every_seconds=1000) as made:
        pid = made.start(long_item=30)
        made.wait(lambda: made.count() == 31)
        made.daemon.flag(1)
        made.daemon.order(Do.FLUSH, 1)
        made.wait(lambda: made.daemon.status("batch").saved.seq == 1)
        made.kill(pid)
        made.run()
        made.expect_all(40)
        assert made.redone() == {1: 1}


def test_time_bounds_what_a_slow_batch_loses(tmp_path: Path) -> None:
    """No output waits longer than `every_seconds`, though no item ends meanwhile."""
    with batch(tmp_path, items=10, every_items=1000, every_seconds=0.1) as made:
        pid = made.start(long_item=4)
        made.wait(lambda: made.count() == 5 and len(made.outputs()) == 4)
        made.kill(pid)
        made.run()
        made.expect_all(10)
        assert made.redone() == {1: 1}


def test_a_stopped_worker_that_wakes_changes_nothing(tmp_path: Path) -> None:
    """SIGSTOP for longer than its lease: another has its share, and it ends without another word."""
    with batch(tmp_path, items=300, every_items=10, lease_seconds=1.0, seconds=0.005) as made:
        first = made.start()
        made.wait(lambda: made.count() > 50)
        os.kill(first, signal.SIGSTOP)
        second = made.start()
        made.wait(lambda: made.executed()[-1][0] == 2)
        os.kill(first, signal.SIGCONT)
        made.end(first, 77)
        made.end(second, 0)
        made.expect_all(300)
        assert max(made.redone().values()) <= 11
        assert {life for life, _ in made.executed()} == {1, 2}


def test_a_stopped_worker_of_several_goes_on_with_another_share(tmp_path: Path) -> None:
    """What it had in memory is done by whoever has its share now, at most `every_items`."""
    with batch(tmp_path, items=400, every_items=10, lease_seconds=1.0, seconds=0.005, shares=4) as made:
        first = made.start()
        made.wait(lambda: made.count() > 20)
        os.kill(first, signal.SIGSTOP)
        second = made.start()
        # It can come to an end only with the share of the one that sleeps.
        made.end(second, 0)
        os.kill(first, signal.SIGCONT)
        made.end(first, 0)
        made.expect_all(400)
        assert max(made.redone().values(), default=0) <= 11


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


def test_without_a_thread_items_wait(
    store: FaultyStore,
    new: New,
    environ: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the system gives none, all is saved by the loop itself, and an order at the end of an item."""

    def refuse(self: threading.Thread) -> None:
        if self.name == "spotwatch-done":
            raise RuntimeError("can't start new thread")
        start(self)

    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert do(new(every_items=3), range(10)) == list(range(10))
    assert sorted(outputs(store, environ)) == list(range(10))


def test_a_conflict_with_a_sound_segment_is_a_loss(store: FaultyStore, new: New, daemon: Daemon) -> None:
    """Somebody else has written the next number: nothing more is written, and the program ends with 77."""
    done = new(every_items=2)
    with done:
        for item in done.todo(range(10)):
            if item == 2:
                until(lambda: len(segments(store)) == 1)
                number = len([key for key in store.objects if key.endswith(".jsonl")]) + 1
                key = f"share-0000-of-0001/{number:08d}.jsonl"
                store.objects[key] = store.objects[segments(store)[0]]
            done.add(item, item)
    assert done.exit_code == 77
    assert daemon.status("batch").exit_code == 77
    assert len(segments(store)) == 2


def test_what_was_in_memory_of_a_lost_share_is_offered_again(
    store: FaultyStore, new: New, environ: dict[str, str]
) -> None:
    """And only that: what is durable is not done again, nor passed over because it was done once."""
    done = new(every_items=20, every_seconds=1000, shares=2)
    taken: list[int] = []
    with done:
        for item in done.todo(range(60)):
            taken.append(item)
            done.add(item, item)
            if len(taken) == 10:
                # A worker that had the share meanwhile, and is gone again.
                until(lambda: not done._work.unsaved)
                mine = max(key for key in store.objects if key.endswith(".jsonl"))
                number = int(mine[-14:-6]) + 1
                store.objects[f"{mine[:-14]}{number:08d}.jsonl"] = Segment("other", 9, ()).to_bytes()
    assert done.exit_code == 0
    assert sorted(outputs(store, environ)) == list(range(60))
    assert 60 < len(taken) <= 80
    assert all(taken.count(item) == 1 for item in taken[:10])


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


def test_saved_is_told_at_its_time(new: New, daemon: Daemon) -> None:
    """The status says when something was durable last, by this machine's clock."""
    begun = datetime.now(UTC)
    do(new(), range(10))
    saved = daemon.status("batch").saved
    assert saved.at is not None
    assert begun <= saved.at <= datetime.now(UTC)
    assert saved.step == 10
