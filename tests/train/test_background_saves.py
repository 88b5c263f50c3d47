# SPDX-License-Identifier: Apache-2.0
"""What the loop does while a save is on its way to the store, and how its end is learned of."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from spotwatch.errors import StoreError
from spotwatch.model import Do
from spotwatch.train import Checkpointer
from spotwatch.train.parts import Body
from spotwatch.train.registry.registry import Registry
from spotwatch.train.store import OnPart
from spotwatch.train.stores.directory import DirectoryStore

from .conftest import Daemon, Make, dirs, train

pytestmark = pytest.mark.usefixtures("handlers_come_back")


class Gate(DirectoryStore):
    """A store whose uploads wait until they are let through, or refused."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.open = threading.Event()
        self.waiting = threading.Event()
        self.refuses = False

    def upload(self, key: str, body: Body, on_part: OnPart) -> tuple[str, ...]:
        """Wait, then store or refuse."""
        self.waiting.set()
        while not self.open.wait(0.01):
            on_part(0)
        self.waiting.clear()
        if self.refuses:
            raise StoreError("the link is down")
        return super().upload(key, body, on_part)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Return a store that is shut."""
    return Gate(tmp_path / "store" / "run")


def until(condition: object, ck: Checkpointer) -> None:
    """Wait until a save has ended; the loop stands still meanwhile."""
    assert callable(condition)
    give_up_at = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < give_up_at, ck._link.heart.status
        time.sleep(0.005)


def test_training_goes_on_while_the_save_is_on_its_way(make: Make, gate: Gate, daemon: Daemon) -> None:
    """The loop waits for a copy; what it changes afterwards is not in the checkpoint."""
    ck, counter = make(gate, blocking=False, every_steps=2)
    ck.resume()
    with ck:
        for step in range(2):
            counter.train(step)
            assert not ck.step(step + 1)
        assert gate.waiting.wait(10)
        assert daemon.status().phase == "uploading"
        counter.train(2)
        assert not ck.step(3)
        assert dirs(gate.root.parents[1]) == []
        gate.open.set()
        until(lambda: daemon.status().saved.step == 2, ck)
        assert daemon.status().saved.stall_seconds < daemon.status().saved.save_seconds
        assert not ck.step(3)
    again, counter = make()
    assert again.resume() == 3
    registry = Registry(DirectoryStore(gate.root), "run")
    assert [found.order[1] for found in registry.checkpoints()] == [3, 2]


def test_a_multiple_that_falls_into_a_save_is_passed_over(make: Make, gate: Gate, tmp_path: Path) -> None:
    """There is one buffer: a save is never begun while another is on its way, and it is counted."""
    ck, counter = make(gate, blocking=False, every_steps=1, keep=9)
    ck.resume()
    with ck:
        for step in range(5):
            counter.train(step)
            ck.step(step + 1)
        assert ck._schedule.skipped == 4
        gate.open.set()
        until(lambda: ck._saver.wants_boundary, ck)
        ck.step(6)
        until(lambda: ck._saver.wants_boundary, ck)
    assert [name[:14] for name in dirs(tmp_path)] == ["step-000000001", "step-000000006"]


def test_the_flag_is_removed_as_soon_as_the_save_is_durable(make: Make, gate: Gate, daemon: Daemon) -> None:
    """The answer does not wait for the end of a step that may be long."""
    ck, counter = make(gate, blocking=False, every_steps=1000)
    ck.resume()
    with ck:
        daemon.order(Do.FLUSH, 3)
        assert daemon.flag(3)
        daemon.wait(lambda status: status.phase == "seen")
        counter.train(0)
        ck.step(1)
        assert (daemon.runtime_dir / "checkpoint-now").exists()
        gate.open.set()
        status = daemon.wait(lambda status: status.saved.seq == 3)
        assert status.saved.step == 1
        until(lambda: not (daemon.runtime_dir / "checkpoint-now").exists(), ck)


def test_a_flag_touched_during_an_upload_gets_a_save_of_its_own(
    make: Make, gate: Gate, daemon: Daemon, tmp_path: Path
) -> None:
    """It may ask for steps that the save on its way does not hold."""
    ck, counter = make(gate, blocking=False, every_steps=1, keep=9)
    ck.resume()
    flag = daemon.runtime_dir / "checkpoint-now"
    with ck:
        counter.train(0)
        ck.step(1)
        assert gate.waiting.wait(10)
        ck._schedule.next_step = 10**9
        flag.touch()
        until(lambda: ck._link.orders.flush, ck)
        counter.train(1)
        ck.step(2)
        gate.open.set()
        until(lambda: ck._saver.wants_boundary, ck)
        assert flag.exists()
        counter.train(2)
        ck.step(3)
        until(lambda: not flag.exists(), ck)
    assert [name[:14] for name in dirs(tmp_path)] == ["step-000000001", "step-000000003"]


@pytest.mark.parametrize("refuses", [False, True])
def test_a_stop_during_an_upload_lets_it_end_and_saves_the_last_step(
    make: Make, gate: Gate, tmp_path: Path, refuses: bool
) -> None:
    """A save is not begun anew because of a stop, and no step is lost, whether it succeeds or not."""
    ck, counter = make(gate, blocking=False, every_steps=2, keep=9)
    ck.resume()
    with ck:
        for step in range(2):
            counter.train(step)
            ck.step(step + 1)
        assert gate.waiting.wait(10)
        os.kill(os.getpid(), signal.SIGTERM)
        gate.refuses = refuses

        def let_through() -> None:
            gate.open.set()
            until(lambda: ck._schedule.failures or ck._saver.saved_step == 2, ck)
            gate.refuses = False

        helper = threading.Thread(target=let_through)
        helper.start()
        counter.train(2)
        assert ck.step(3)
        helper.join()
    assert ck.exit_code == 75
    saved = ["step-000000003"] if refuses else ["step-000000002", "step-000000003"]
    assert [name[:14] for name in dirs(tmp_path)] == saved


def test_a_failed_upload_surfaces_at_the_next_step(make: Make, gate: Gate, daemon: Daemon) -> None:
    """As status and log, without an end of training; too many in a row end it."""
    ck, counter = make(gate, blocking=False, every_steps=1, give_up_after=2)
    gate.refuses = True
    gate.open.set()
    ck.resume()

    def fail() -> None:
        with ck:
            counter.train(0)
            assert not ck.step(1)
            until(lambda: ck._saver.wants_boundary, ck)
            assert not ck.step(2)
            assert (daemon.status().phase, daemon.status().error) == ("failed", "store: the link is down")
            ck._schedule.pause_until = ck._schedule.next_at = 0.0
            assert not ck.step(3)
            until(lambda: ck._saver.wants_boundary, ck)
            ck.step(4)

    with pytest.raises(StoreError, match="the link is down"):
        fail()
    assert ck.exit_code == 76


def test_an_exception_in_the_loop_lets_a_sound_save_end(make: Make, gate: Gate) -> None:
    """What was staged before the failure is whole, and the next start has it."""
    ck, counter = make(gate, blocking=False, every_steps=1)
    ck.resume()

    def fail() -> None:
        with ck:
            counter.train(0)
            ck.step(1)
            threading.Timer(0.05, gate.open.set).start()
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        fail()
    assert ck.exit_code == 76
    assert make()[0].resume() == 1


def test_what_is_not_healthy_is_kept_aside(make: Make, daemon: Daemon, tmp_path: Path) -> None:
    """LATEST names the last good checkpoint, and an order to save is answered all the same."""
    ck, counter = make(every_steps=1, keep=9)
    ck.resume()
    with ck:
        counter.train(0)
        ck.step(1, healthy=True)
        counter.train(1)
        daemon.order(Do.FLUSH, 2)
        until(lambda: ck._link.orders.flush, ck)
        ck.step(2, healthy=lambda: math.isfinite(math.nan))
        status = daemon.status()
        assert (status.saved.step, status.saved.seq) == (1, 2)
        assert "step 2 is not healthy" in status.error
        os.kill(os.getpid(), signal.SIGTERM)
        counter.train(2)
        assert ck.step(3, healthy=False)
    assert ck.exit_code == 75
    again, counter = make()
    assert again.resume() == 1
    assert counter.steps == [0]
    assert len(dirs(tmp_path)) == 3


def test_a_run_that_was_never_healthy_has_nothing_durable(make: Make) -> None:
    """There is nothing to go on from, and the exit code does not say otherwise."""
    ck, counter = make(every_steps=1000)
    ck.resume()
    with ck:
        counter.train(0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert ck.step(1, healthy=False)
    assert ck.exit_code == 76


def test_the_lease_is_released_and_says_how_it_ended(make: Make, tmp_path: Path) -> None:
    """The next machine need not wait, and the history tells lives that ended well from those lost."""
    from spotwatch.train.lease.lease import read  # noqa: PLC0415 - one test's

    ck, counter = make(every_steps=1)
    train(ck, counter, 2)
    claim = read(DirectoryStore(tmp_path / "store" / "run"))
    assert claim is not None
    assert claim.released == "finished"


def test_a_lost_lease_ends_the_loop_with_77(make: Make, tmp_path: Path) -> None:
    """Another process has the run: this one writes nothing more."""
    ck, counter = make(every_steps=1000, blocking=False)
    ck.resume()
    with ck:
        counter.train(0)
        assert not ck.step(1)
        other, _ = make()
        other.resume()
        with pytest.raises(StoreError):
            ck._life._lease._hold.renew()  # type: ignore[union-attr]
        assert ck.step(2)
        other._end("failed")
    assert ck.exit_code == 77
    assert dirs(tmp_path) == []
