# SPDX-License-Identifier: Apache-2.0
"""How a training program may use the loop's object, and what a wrong use would have cost."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwatch.errors import ConfigError, StoreError
from spotwatch.model import Do
from spotwatch.train import Checkpointer

from .conftest import Counter, Daemon, Make, dirs, train
from .faulty import FaultyStore

pytestmark = pytest.mark.usefixtures("handlers_come_back")


def _wait(gate: threading.Event) -> None:
    assert gate.wait(15)


def in_another_thread(call: Callable[[], object]) -> BaseException | None:
    """Return what `call` raises in a thread of its own."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - it is what is asked for
            raised.append(error)

    thread = threading.Thread(target=run, name="evaluation")
    thread.start()
    thread.join()
    return raised[0] if raised else None


def test_steps_that_start_again_with_an_epoch_are_refused(make: Make) -> None:
    """They would name other weights like those that are saved; the message says what to pass."""
    ck, counter = make(every_steps=10)
    ck.resume()

    def epochs() -> None:
        with ck:
            for _ in range(2):
                for batch in range(10):
                    counter.train(batch)
                    ck.step(batch + 1)

    with pytest.raises(ConfigError, match=r"step 1 after step 10: .*over the whole run.*: step \+= 1 after"):
        epochs()
    assert ck.exit_code == 76
    assert make()[0].resume() == 10


def test_steps_go_on_where_the_run_was_resumed(make: Make) -> None:
    """A restarted program that counts from 1 again is refused at its first step, and so is a save."""
    train(*make(every_steps=5), 5)
    ck, _ = make(every_steps=5)
    ck.resume()
    with ck:
        for use in (ck.step, ck.save):
            with pytest.raises(ConfigError, match="step 1 after step 5"):
                use(1)
        assert not ck.step(6)
    assert ck.exit_code == 0


def test_a_step_told_again_after_its_save_is_saved_again(make: Make) -> None:
    """Training went on without counting: the weights at the end are not those that are stored."""
    ck, counter = make(every_steps=3)
    ck.resume()
    with ck:
        for step in (1, 2, 3, 3):
            counter.train(step)
            ck.step(step)
    assert ck.exit_code == 0
    again, counter = make()
    assert (again.resume(), counter.steps) == (3, [1, 2, 3, 3])


def test_so_it_is_when_its_save_was_still_on_its_way(make: Make) -> None:
    """A save that becomes durable after the second call holds the state before it."""
    store = FaultyStore()
    gate = threading.Event()
    store.before = lambda deed: None if not deed.startswith("upload") else _wait(gate)
    ck, counter = make(store, every_steps=3, blocking=False)
    ck.resume()
    with ck:
        for step in (1, 2, 3, 3):
            counter.train(step)
            ck.step(step)
        gate.set()
    assert ck.exit_code == 0
    again, counter = make(store)
    assert (again.resume(), counter.steps) == (3, [1, 2, 3, 3])


def test_so_it_is_when_the_second_save_failed(make: Make) -> None:
    """A save that was asked for and failed leaves the step unsaved, whatever is stored under its number."""
    store = FaultyStore()
    ck, counter = make(store, every_steps=3)
    ck.resume()
    with ck:
        for step in (1, 2, 3):
            counter.train(step)
            ck.step(step)
        counter.train(3)
        store.fail_at = "upload"
        with pytest.raises(StoreError):
            ck.save(3)
        store.fail_at = ""
    assert ck.exit_code == 0
    again, counter = make(store)
    assert (again.resume(), counter.steps) == (3, [1, 2, 3, 3])


def test_a_step_that_is_saved_is_not_saved_twice(make: Make, tmp_path: Path) -> None:
    """At the end of a loop nothing is stored again when nothing was done since."""
    ck, counter = make(every_steps=1000)
    ck.resume()
    with ck:
        counter.train(0)
        ck.step(1)
        ck.save(1)
    assert (ck.exit_code, len(dirs(tmp_path))) == (0, 1)


def test_going_back_before_anything_was_saved_is_refused(make: Make) -> None:
    """`resume` in the loop would return 0 and leave the trained weights; refused, the loop goes on."""
    ck, counter = make(every_steps=1000)
    ck.resume()
    with ck:
        counter.train(0)
        ck.step(1)
        with pytest.raises(
            StoreError, match=r"inside the loop: .*no checkpoint.*save\(step\) before the loop"
        ):
            ck.resume()
        counter.train(1)
        ck.step(2)
    assert ck.exit_code == 0
    again, counter = make()
    assert (again.resume(), counter.steps) == (2, [0, 1])


def test_a_save_before_the_loop_can_be_gone_back_to(make: Make) -> None:
    """As the message says."""
    ck, counter = make(every_steps=1000)
    ck.resume()
    ck.save(0)
    with ck:
        counter.train(0)
        ck.step(1)
        assert (ck.resume(), counter.steps) == (0, [])


def test_another_thread_saves_nothing(make: Make, tmp_path: Path) -> None:
    """It would copy the state while training changes it: refused by name, and training goes on."""
    ck, counter = make(every_steps=2)
    ck.resume()
    with ck:
        counter.train(0)
        ck.step(1)
        for use in (lambda: ck.save(1), lambda: ck.step(2), ck.resume):
            error = in_another_thread(use)
            assert isinstance(error, ConfigError)
            assert "from thread evaluation, but MainThread has entered `with`" in str(error)
        assert not dirs(tmp_path)
        counter.train(1)
        ck.step(3)
    assert ck.exit_code == 0


def test_a_loop_may_run_in_a_thread_of_its_own(make: Make) -> None:
    """It counts which thread enters `with`, not which one made the object or resumed."""
    ck, counter = make(every_steps=2)
    ck.resume()

    def loop() -> None:
        with ck:
            for step in range(1, 4):
                counter.train(step)
                ck.step(step)

    assert in_another_thread(loop) is None
    assert ck.exit_code == 0
    assert make()[0].resume() == 3


def test_a_loop_without_with_is_told_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """It works until its end, which then nobody sees: the last step is not saved."""
    ck, _ = make(every_steps=1000)
    ck.resume()
    for step in (1, 2, 3):
        ck.step(step)
    told = [record for record in caplog.records if "outside `with`" in record.message]
    assert [record.levelname for record in told] == ["WARNING"]
    assert ck.exit_code == 76


@pytest.mark.parametrize(("code", "is_told"), [(0, True), (None, True), (3, False)])
def test_an_exit_that_claims_success_is_told(
    make: Make, caplog: pytest.LogCaptureFixture, code: int | None, is_told: bool
) -> None:
    """The process would end with 0 although the last step is not saved."""
    ck, _ = make(every_steps=1000)
    with pytest.raises(SystemExit):
        leave_by_exit(ck, code)
    assert ck.exit_code == 76
    assert any("left by sys.exit" in record.message for record in caplog.records) == is_told


def leave_by_exit(ck: Checkpointer, code: int | None) -> None:
    """Train one step and leave the program."""
    ck.resume()
    with ck:
        ck.step(1)
        sys.exit(code)


def test_an_exit_with_the_verdict_is_not_told(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """After step() said True the step is saved, and any way out is right."""
    ck, counter = make(every_steps=1000)
    with pytest.raises(SystemExit):
        stop_and_exit(ck, counter)
    assert ck.exit_code == 75
    assert not any("left by sys.exit" in record.message for record in caplog.records)


def stop_and_exit(ck: Checkpointer, counter: Counter) -> None:
    """Hear a stop, and leave the program from within `with`."""
    ck.resume()
    with ck:
        counter.train(0)
        os.kill(os.getpid(), signal.SIGTERM)
        if ck.step(1):
            sys.exit(0)


def stop_at(ck: Checkpointer, counter: Counter, step: int) -> bool:
    """Train a step, during which a stop comes, and return what is said after it."""
    counter.train(step)
    os.kill(os.getpid(), signal.SIGTERM)
    return ck.step(step)


def test_a_break_that_leaves_one_loop_of_two_ends_at_the_next_step(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was trained after step() said True is not saved; what was saved stands, and so does its status."""
    ck, counter = make(every_steps=1)
    step = ck.resume()

    def epochs() -> None:
        nonlocal step
        with ck:
            for _ in range(4):
                for _ in range(4):
                    step += 1
                    if stop_at(ck, counter, step) if step == 2 else ck.step(step):
                        break
                counter.train(-step)  # as a scheduler that steps after each epoch

    with pytest.raises(SystemExit) as left:
        epochs()
    assert (left.value.code, ck.exit_code, step) == (75, 75, 3)
    told = [record for record in caplog.records if "said to leave at step 2" in record.message]
    assert [record.levelname for record in told] == ["WARNING"]
    assert "went on to step 3" in told[0].message
    assert len(dirs(tmp_path)) == 2
    again, counter = make()
    assert (again.resume(), counter.steps) == (2, [2])


@pytest.mark.parametrize("use", [Checkpointer.step, Checkpointer.save])
def test_so_it_is_although_the_stop_was_withdrawn(
    make: Make, daemon: Daemon, use: Callable[[Checkpointer, int], object]
) -> None:
    """It was obeyed, and the run is not this process's any more to go on with; nor does `save` save."""
    ck, counter = make(every_steps=1000)
    ck.resume()

    def go_on() -> None:
        with ck:
            daemon.order(Do.STOP, 3)
            daemon.wait(lambda s: s.phase == "seen")
            counter.train(1)
            assert ck.step(1)
            daemon.order(Do.NONE, 4)
            ck._link.orders.look()
            assert not ck._link.is_stopping
            counter.train(2)
            use(ck, 2)

    with pytest.raises(SystemExit) as left:
        go_on()
    assert (left.value.code, ck.exit_code) == (75, 75)
    again, counter = make()
    assert (again.resume(), counter.steps) == (1, [1])


def test_a_loop_may_ask_again_at_the_same_step(make: Make, tmp_path: Path) -> None:
    """The outer loop of two is told to leave as well, and nothing of what came between is saved."""
    ck, counter = make(every_steps=1000)
    ck.resume()
    with ck:
        assert stop_at(ck, counter, 1)
        counter.train(-1)
        assert ck.step(1)
    assert (ck.exit_code, len(dirs(tmp_path))) == (75, 1)
    again, counter = make()
    assert (again.resume(), counter.steps) == (1, [1])
