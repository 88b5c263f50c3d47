# SPDX-License-Identifier: Apache-2.0
"""What a batch does when it is told: by the daemon's files, by a flag, by signals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spotwatch.handshake import FLAG
from spotwatch.model import Do
from spotwatch.train.done.keeper import Bounds, Keeper
from spotwatch.train.done.log import Stored
from spotwatch.train.done.teller import Teller
from spotwatch.train.link import Link
from spotwatch.train.orders import Mark

from .conftest import Daemon
from .done_help import New, do, outputs, segments
from .done_lives import batch
from .done_world import Deaf
from .faulty import FaultyStore
from .lease_world import stranger, until

pytestmark = [pytest.mark.usefixtures("handlers_come_back"), pytest.mark.timeout(120)]


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


@pytest.mark.parametrize(("size", "ahead"), [(1, "5 items that were taken ahead"), (7, "")])
def test_a_stop_says_how_many_items_were_taken_ahead(
    new: New, daemon: Daemon, caplog: pytest.LogCaptureFixture, size: int, ahead: str
) -> None:
    """Whoever takes all at once, as `pool.map` does, is not stopped before the last; a list is one item."""
    done = new(every_items=1000, every_seconds=1000)
    with done:
        items = [item for batch in done.batches(range(7), size=size) for item in batch]
        daemon.order(Do.STOP, 7)
        daemon.wait(lambda status: status.phase == "seen", "batch")
        done.add_many((item, item) for item in items)
    assert done.exit_code == 75
    told = [record.message for record in caplog.records if "taken ahead" in record.message]
    assert len(told) == bool(ahead)
    assert ahead in "".join(told)


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


def test_saved_is_told_at_its_time(new: New, daemon: Daemon) -> None:
    """The status says when something was durable last, by this machine's clock."""
    begun = datetime.now(UTC)
    do(new(), range(10))
    saved = daemon.status("batch").saved
    assert saved.at is not None
    assert begun <= saved.at <= datetime.now(UTC)
    assert saved.step == 10


def test_the_last_word_counts_the_last_save() -> None:
    """Who waits for a save hears of its end once it has been told: what is said then must not be undone."""
    unsaved: list[int] = []

    class Hearing(Deaf):
        """Notes how many items are unsaved when it is told."""

        def saved(self, mark: Mark, stored: Stored, items: int, seconds: float) -> None:
            """Note it."""
            del mark, stored, items, seconds
            unsaved.append(keeper.unsaved)

    keeper = Keeper(Bounds(4, 1000.0, None), Hearing(), lambda: 0.0, lambda seconds: None)
    tenure = keeper.renew()
    keeper.begin(lambda lines: Stored("", 0, ""))
    assert keeper.add(b"a\n", tenure)
    assert keeper.drain()
    keeper.end()
    assert unsaved == [1]


class Slow:
    """What was asked for, of which a later one is answered meanwhile."""

    flags = ()

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._looks = 0
        self._other = threading.Thread(target=meanwhile, daemon=True)

    @property
    def seq(self) -> int:
        """Return its number; at the second look, when the other answer has come or cannot."""
        self._looks += 1
        if self._looks == 2:
            self._other.start()
            self._other.join(0.5)
        return 5

    def wait(self) -> None:
        """Wait for the other answer."""
        self._other.join(60)
        assert not self._other.is_alive()


def test_of_two_answers_at_once_the_later_order_stays_answered(
    environ: dict[str, str], daemon: Daemon
) -> None:
    """The thread that saves answers a flush, and the loop the stop that came after it."""
    link = Link("batch", environ, lambda: 0)
    teller = Teller(link, "")
    slow: Any = Slow(lambda: teller.answer(Mark(7, ())))
    teller.answer(slow)
    slow.wait()
    teller.say_last()
    assert daemon.status("batch").saved.seq == 7
