# SPDX-License-Identifier: Apache-2.0
"""What the exit code says where loops are several, were left or never began; what the log says of keys."""

from __future__ import annotations

import os
import signal

import pytest

from spotwatch.model import Do
from spotwatch.train import DoneList
from spotwatch.train.done.segment import Segment

from .conftest import Daemon
from .done_help import New, do, outputs
from .faulty import FaultyStore
from .lease_world import until

pytestmark = [pytest.mark.usefixtures("handlers_come_back"), pytest.mark.timeout(120)]

_PARTS = [range(begin, begin + 10) for begin in range(0, 50, 10)]


def _go_by_parts(done: DoneList, stop_before: int = -1) -> None:
    """Do part after part, as a program does that fetches them one by one, and be told to stop before one."""
    with done:
        for number, part in enumerate(_PARTS):
            if number == stop_before:
                os.kill(os.getpid(), signal.SIGTERM)
                until(lambda: done._teller.is_stopping)
            if done.poll():
                break
            for item in done.todo(part):
                done.add(item, item)


@pytest.mark.parametrize("stop_before", [0, 2])
def test_told_to_stop_between_two_loops_is_not_finished(
    store: FaultyStore, new: New, environ: dict[str, str], stop_before: int
) -> None:
    """Each loop that was begun was gone through, and the next never began: 75, and the next start does it."""
    first, second = new(), new()
    _go_by_parts(first, stop_before)
    assert (first.exit_code, len(outputs(store, environ))) == (75, 10 * stop_before)
    _go_by_parts(second)
    assert (second.exit_code, len(outputs(store, environ))) == (0, 50)


def test_a_loop_that_begins_under_a_stop_is_not_finished(new: New, daemon: Daemon) -> None:
    """It gives nothing; nor is it finished where the stop is withdrawn before the program ends."""
    for seq, looks in ((1, False), (3, True)):
        done = new()
        with done:
            daemon.order(Do.STOP, seq)
            until(lambda done=done: done._teller.is_stopping)  # type: ignore[misc]  # bound at once
            if not looks:
                assert list(done.todo(range(5))) == []
            else:
                assert done.poll()
            daemon.order(Do.NONE, seq + 1)
            until(lambda done=done: not done._teller.is_stopping)  # type: ignore[misc]  # as above
        assert done.exit_code == 75


def test_two_tasks_over_one_list_are_two(store: FaultyStore, new: New, environ: dict[str, str]) -> None:
    """The first was left, and going through the same items by other keys does not make up for that."""
    items = [f"p{number}" for number in range(10)]
    done = new()
    with done:
        for count, item in enumerate(done.todo(items, key="caption-{}".format)):
            done.add(f"caption-{item}", 1)
            if count == 3:
                break
        for item in done.todo(items, key="tags-{}".format):
            done.add(f"tags-{item}", 1)
    assert len(outputs(store, environ)) == 14
    assert done.exit_code == 75


def test_one_task_may_name_its_key_twice(new: New) -> None:
    """Two functions that give the same keys are one task: a loop that was left is made up for."""
    done = new()
    items = [{"id": number} for number in range(5)]
    with done:
        next(done.todo(items, key=lambda item: item["id"]))
        for item in done.todo(items, key=lambda item: int(item["id"])):
            done.add(item["id"], 1)
    assert done.exit_code == 0


@pytest.mark.parametrize(("shares", "code"), [(1, 77), (2, 75)])
@pytest.mark.parametrize("how", ["break", "stop"])
def test_a_share_that_is_found_lost_at_the_end_loses_nothing(
    store: FaultyStore, new: New, how: str, shares: int, code: int
) -> None:
    """What was in memory is done by whoever has the share: another's list is 77, one of its shares 75."""
    done = new(shares=shares, every_items=1000, every_seconds=1000)
    with done:
        for count, item in enumerate(done.todo(range(100))):
            if count == 3:
                mine = max(key for key in store.objects if key.endswith(".jsonl"))
                number = int(mine[-14:-6]) + 1
                store.objects[f"{mine[:-14]}{number:08d}.jsonl"] = Segment("other", 9, ()).to_bytes()
                if how == "break":
                    break
                os.kill(os.getpid(), signal.SIGTERM)
            done.add(item, item)
    assert done.exit_code == code


def test_items_that_come_in_parts_are_no_strangers(new: New, caplog: pytest.LogCaptureFixture) -> None:
    """A second start finds outputs of all parts when it goes through the first; others are still told."""
    for _ in range(2):
        done = new()
        _go_by_parts(done)
        assert done.exit_code == 0
    assert "not among these" not in caplog.text
    do(new(), range(7))
    assert "outputs of at least 43 keys that are not among these 7 items" in caplog.text
