# SPDX-License-Identifier: Apache-2.0
"""Programs that take items ahead, pass over some, fork, or lose a share: nothing undone is called done."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spotwatch.clock import read_boot_id
from spotwatch.errors import ConfigError, RunTaken
from spotwatch.handshake import Order
from spotwatch.model import Do
from spotwatch.safe_files import write_atomically
from spotwatch.train.done.keeper import Bounds, Keeper
from spotwatch.train.done.log import Stored
from spotwatch.train.done.segment import Segment

from .conftest import Daemon
from .done_help import New, do, outputs, segments
from .done_world import Deaf
from .faulty import FaultyStore
from .lease_world import claim, stranger, until

pytestmark = [pytest.mark.usefixtures("handlers_come_back"), pytest.mark.timeout(120)]


def _one_ahead(items: Iterable[Any]) -> Iterator[Any]:
    before: list[Any] = []
    for item in items:
        yield from before
        before = [item]
    yield from before


def test_taken_ahead_and_told_to_stop_is_not_finished(new: New, daemon: Daemon) -> None:
    """All were taken, few have an output: 75."""
    done = new(every_items=100)
    with done:
        for count, item in enumerate(list(done.todo(range(20)))):
            if count == 3:
                daemon.order(Do.STOP, 1)
                until(done.poll)
                break
            done.add(item, item)
    assert done.exit_code == 75
    assert do(new(), range(20)) == list(range(3, 20))


def test_one_ahead_with_a_key_that_comes_twice(new: New) -> None:
    """It is given once, though it is not added yet when it comes again."""
    done = new()
    with done:
        for item in _one_ahead(done.todo(["a", "b", "b", "c"])):
            done.add(item, 1)
    assert done.exit_code == 0


def test_a_loop_that_is_gone_through_after_all_is_finished(new: New) -> None:
    """A first item taken for trying costs no exit code."""
    done = new()
    with done:
        next(done.todo(range(5)))
        for item in done.todo(range(5)):
            done.add(item, item)
    assert done.exit_code == 0


def test_several_shares_and_taking_ahead_do_not_go_together(new: New) -> None:
    """The error says so at the first item, and what was added is whole."""
    done = new(shares=2)
    with done:
        ahead = _one_ahead(done.todo([f"k{number}" for number in range(20)]))
        first = next(ahead)
        with pytest.raises(ConfigError, match="nothing may take ahead"):
            done.add(first, 1)
    assert done.exit_code == 75


def test_a_forked_child_cannot_add(new: New) -> None:
    """What it adds would be lost in silence."""
    done = new()
    with done:
        for item in done.todo(range(1)):
            done._pid = os.getpid() + 1
            with pytest.raises(ConfigError, match="was forked inside"):
                done.add(item, item)
            done._pid = os.getpid()
            done.add(item, item)
    assert done.exit_code == 0


def test_a_deadline_that_is_past_is_no_reason_not_to_try(
    store: FaultyStore, new: New, daemon: Daemon, environ: dict[str, str]
) -> None:
    """The item that was under way is saved."""
    done = new(every_items=100)
    late = datetime.now(UTC) - timedelta(seconds=1)
    order = Order(boot_id=read_boot_id(), seq=3, do=Do.STOP, why="reclaim", deadline=late)
    with done:
        for item in done.todo(range(9)):
            if item == 5:
                write_atomically(daemon.runtime_dir / "order.json", order.to_bytes())
                until(done.poll)
            done.add(item, item)
    assert done.exit_code == 75
    assert sorted(outputs(store, environ)) == [0, 1, 2, 3, 4, 5]


def test_what_is_added_after_a_loss_is_done_again(
    store: FaultyStore, new: New, environ: dict[str, str]
) -> None:
    """The share is lost within a list of items and taken back: none of these is passed over."""
    done = new(shares=2, every_items=100, every_seconds=1000)
    items = [f"k{number}" for number in range(24)]
    taken = []
    with done:
        for count, batch in enumerate(done.batches(items, 4)):
            taken += batch
            if count == 0:
                done._work._keeper.lose(done._work._keeper.tenure, RunTaken("another was here"))
            done.add_many((key, 1) for key in batch)
    assert done.exit_code == 0
    assert sorted(outputs(store, environ)) == sorted(items)
    assert sorted(taken) == sorted([*items, *taken[:4]])


@pytest.mark.parametrize("error", [None, RunTaken("it is another's")])
def test_a_late_save_counts_for_no_later_share(error: RunTaken | None) -> None:
    """Neither its success nor its loss: the next share's items stay what they are."""
    goes_on, hangs, over = threading.Event(), threading.Event(), threading.Event()
    keeper = Keeper(Bounds(2, 1000.0, None), Deaf(), lambda: 0.0, lambda seconds: None)

    def late(lines: object) -> Stored:
        hangs.set()
        goes_on.wait(60)
        over.set()
        if error is not None:
            raise error
        return Stored("", 0, "")

    first = keeper.renew()
    keeper.begin(late)
    assert keeper.add(b"a\n", first)
    assert hangs.wait(60)
    old = keeper._thread
    second = keeper.renew()
    keeper.begin(lambda lines: Stored("", 0, ""))
    goes_on.set()
    assert over.wait(60)
    assert old is not None
    old.join(60)
    keeper.lose(first, RunTaken("late"))
    assert (keeper.unsaved, keeper.lost) == (0, None)
    assert not keeper.add(b"a\n", first)
    assert keeper.add(b"b\n", second)
    assert keeper.drain()
    keeper.end()


def test_a_worker_that_waits_answers_a_flush(store: FaultyStore, new: New, daemon: Daemon) -> None:
    """It has nothing to save, and says so at once."""
    do(new(), range(2), most=1)
    store.objects["share-0000-of-0001/LEASE"] = claim(stranger("other")).to_bytes()
    answered = []

    def tell() -> None:
        daemon.wait(lambda status: status.phase == "waiting", "batch")
        daemon.order(Do.FLUSH, 5)
        try:
            answered.append(daemon.wait(lambda status: status.saved.seq == 5, "batch").phase)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    other = threading.Thread(target=tell, daemon=True)
    other.start()
    assert do(new(lease_seconds=60.0), range(2)) == []  # told to stop, before its turn
    other.join(60)
    assert answered == ["waiting"]


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
