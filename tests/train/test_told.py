# SPDX-License-Identifier: Apache-2.0
"""What the loop does when told: by order, by flag, by signal; and how it ends."""

from __future__ import annotations

import os
import signal
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spotwatch.clock import read_boot_id
from spotwatch.handshake import FLAG, ORDER, Order
from spotwatch.model import Do
from spotwatch.safe_files import write_atomically
from spotwatch.train import Checkpointer
from spotwatch.train.orders import Orders
from spotwatch.train.signals import STOPPING
from spotwatch.train.stores.directory import DirectoryStore

from .conftest import Broken, Counter, Daemon, Make, dirs, train

pytestmark = pytest.mark.usefixtures("handlers_come_back")


def test_a_flush_is_saved_and_training_goes_on(make: Make, daemon: Daemon, runtime_dir: Path) -> None:
    """The order is answered with a durable checkpoint, then the flag is gone, and the loop runs on."""
    ck, counter = make(every_steps=1000)
    ck.resume()
    with ck:
        counter.train(0)
        assert not ck.step(1)
        daemon.flag(7)
        daemon.order(Do.FLUSH, 7)
        assert daemon.wait(lambda s: s.seq == 7).phase == "seen"
        counter.train(1)
        assert not ck.step(2)
        status = daemon.status()
        assert (status.saved.seq, status.saved.step, status.phase) == (7, 2, "training")
        assert not (runtime_dir / FLAG).exists()
        counter.train(2)
        assert not ck.step(3)
        assert daemon.status().saved.step == 2
    assert ck.exit_code == 0


def test_a_stop_is_seen_at_once_and_ends_the_loop(make: Make, daemon: Daemon) -> None:
    """`seen` is said while a step still runs; the step's end saves and leaves with 75."""
    ck, counter = make(every_steps=1000)
    ck.resume()
    with ck:
        counter.train(0)
        ck.step(1)
        daemon.order(Do.STOP, 3)
        daemon.wait(lambda s: (s.phase, s.seq) == ("seen", 3))
        counter.train(1)
        assert ck.poll()
        assert ck.step(2)
    assert ck.exit_code == 75
    status = daemon.status()
    assert (status.phase, status.saved.seq, status.saved.step) == ("durable", 3, 2)
    again, counter = make()
    assert again.resume() == 2


def test_a_withdrawn_stop_is_forgotten(make: Make, daemon: Daemon) -> None:
    """A stop that was not yet acted upon ends with `none`, and the loop goes on."""
    ck, counter = make(every_steps=1000)
    ck.resume()
    with ck:
        daemon.order(Do.STOP, 3)
        daemon.wait(lambda s: s.phase == "seen")
        daemon.order(Do.NONE, 4)
        daemon.wait(lambda s: s.phase == "training")
        counter.train(0)
        assert not ck.poll()
        assert not ck.step(1)
    assert ck.exit_code == 0


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_saves_and_leaves(make: Make, number: signal.Signals) -> None:
    """Each of the three signals, many times over, is one save and 75."""
    ck, counter = make(every_steps=1000)
    ck.resume()
    with ck:
        for _ in range(4):
            os.kill(os.getpid(), number)
        counter.train(0)
        assert ck.step(1)
    assert ck.exit_code == 75


def test_breaking_off_an_evaluation_is_a_stop(make: Make, tmp_path: Path) -> None:
    """A loop left because of poll() has stopped, not finished, and its last step is saved."""
    ck, counter = make(every_steps=1000)
    ck.resume()
    with ck:
        counter.train(0)
        ck.step(1)
        assert not ck.poll()
        os.kill(os.getpid(), signal.SIGTERM)
        assert ck.poll()
    assert ck.exit_code == 75
    assert len(dirs(tmp_path)) == 1


def test_a_stop_after_the_last_step_finishes(make: Make) -> None:
    """When the loop came to its end by itself, the run is finished whatever was ordered meanwhile."""
    ck, counter = make(every_steps=1000)
    ck.resume()
    with ck:
        counter.train(0)
        ck.step(1)
        os.kill(os.getpid(), signal.SIGTERM)
    assert ck.exit_code == 0


def test_an_exception_saves_nothing(make: Make, tmp_path: Path, daemon: Daemon) -> None:
    """A loop that fails may have half a step in its weights: nothing is saved, it propagates, 76."""
    ck, counter = make(every_steps=1000)
    ck.resume()

    def fail() -> None:
        with ck:
            counter.train(0)
            ck.step(1)
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        fail()
    assert ck.exit_code == 76
    assert not dirs(tmp_path)
    assert (daemon.status().phase, "ZeroDivision" in daemon.status().error) == ("failed", True)


def test_sys_exit_after_the_save_keeps_the_verdict(make: Make, daemon: Daemon) -> None:
    """Leaving the process inside `with` after step() said so is still a durable stop, and no error."""
    ck, counter = make(every_steps=1000)
    ck.resume()

    def leave() -> None:
        with ck:
            os.kill(os.getpid(), signal.SIGTERM)
            counter.train(0)
            assert ck.step(1)
            raise SystemExit(ck.exit_code)

    with pytest.raises(SystemExit):
        leave()
    assert ck.exit_code == 75
    assert (daemon.status().phase, daemon.status().error) == ("durable", "")


def test_a_flush_that_waited_for_us_is_answered_by_the_resumed_checkpoint(
    make: Make, daemon: Daemon, runtime_dir: Path, tmp_path: Path
) -> None:
    """No work is unsaved after a resume: nothing is saved again, the order is answered, the flag goes."""
    ck, counter = make(every_steps=10)
    train(ck, counter, 10)
    daemon.flag(5)
    daemon.order(Do.FLUSH, 5)
    again, counter = make(every_steps=1000)
    again.resume()
    assert daemon.status().saved.seq == 5
    assert not (runtime_dir / FLAG).exists()
    assert not again.step(10)
    assert len(dirs(tmp_path)) == 1


def test_a_flush_that_waited_for_a_fresh_run_is_saved_at_its_first_step(make: Make, daemon: Daemon) -> None:
    """Without a checkpoint there is nothing to answer with; the first step makes one."""
    daemon.order(Do.FLUSH, 5)
    ck, counter = make(every_steps=1000)
    ck.resume()
    assert daemon.status().saved.seq == 0
    counter.train(0)
    assert not ck.step(1)
    assert (daemon.status().saved.seq, daemon.status().saved.step) == (5, 1)


def test_a_standing_stop_ends_a_new_trainer_at_once(make: Make, daemon: Daemon, runtime_dir: Path) -> None:
    """A trainer started while the machine drains restores nothing and exits 75: its work is durable."""
    ck, counter = make(every_steps=10)
    train(ck, counter, 10)
    daemon.order(Do.STOP, 8)
    (runtime_dir / "draining").touch()
    again, counter = make()
    with pytest.raises(SystemExit) as left:
        again.resume()
    assert (left.value.code, again.exit_code, counter.steps) == (75, 75, [])
    status = daemon.status()
    assert (status.phase, status.saved.seq, status.saved.step) == ("durable", 8, 10)


def test_a_standing_stop_on_a_fresh_run_is_not_durable(make: Make, daemon: Daemon, runtime_dir: Path) -> None:
    """With nothing saved, 75 would be a lie."""
    daemon.order(Do.STOP, 8)
    (runtime_dir / "draining").touch()
    ck, _ = make()
    with pytest.raises(SystemExit) as left:
        ck.resume()
    assert left.value.code == 76
    assert daemon.status().saved.seq == 0


def test_an_old_stop_without_draining_is_not_ours(make: Make, daemon: Daemon) -> None:
    """The stop that ended the trainer before us, lifted since, does not end us."""
    daemon.order(Do.STOP, 8)
    ck, counter = make(every_steps=10)
    assert train(ck, counter, 20) == 20
    assert ck.exit_code == 0


class _Slow(DirectoryStore):
    def read_into(self, key: str, begin: int, target: memoryview) -> None:
        if key.endswith("safetensors"):
            os.kill(os.getpid(), signal.SIGTERM)
        super().read_into(key, begin, target)


def test_a_signal_while_resuming(make: Make, tmp_path: Path) -> None:
    """A stop during the download ends it: 75, for what was to be restored is durable."""
    ck, counter = make(every_steps=10)
    train(ck, counter, 10)
    again, counter = make(_Slow(tmp_path / "store" / "run"))
    with pytest.raises(SystemExit) as left:
        again.resume()
    assert left.value.code == 75
    assert counter.steps == []


def test_a_last_save_is_tried_again(make: Make, tmp_path: Path) -> None:
    """A store that refuses once does not cost the last steps."""
    broken = Broken(tmp_path / "store" / "run")
    ck, counter = make(broken, every_steps=1000)
    ck.resume()
    with ck:
        broken.refusals = 1
        counter.train(0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert ck.step(1)
    assert ck.exit_code == 75


def test_a_last_save_that_cannot_be_made_is_76(make: Make, tmp_path: Path, daemon: Daemon) -> None:
    """When the deadline is near there is one try, and the truth."""
    broken = Broken(tmp_path / "store" / "run")
    ck, counter = make(broken, every_steps=1000)
    ck.resume()
    with ck:
        broken.refusals = 10**9
        counter.train(0)
        soon = datetime.now(UTC) + timedelta(seconds=2)
        order = Order(boot_id=read_boot_id(), seq=1, do=Do.STOP, deadline=soon)
        write_atomically(daemon.runtime_dir / ORDER, order.to_bytes())
        daemon.wait(lambda s: s.phase == "seen")
        assert ck.step(1)
    assert ck.exit_code == 76
    assert (daemon.status().phase, daemon.status().saved.seq) == ("failed", 0)


def test_a_daemon_that_starts_after_us(tmp_path: Path, daemon: Daemon, runtime_dir: Path) -> None:
    """A runtime directory that appears while we train is found, told and listened to."""
    runtime_dir.rmdir()
    ck = Checkpointer(tmp_path / "store", run_id="run", environ={"SPOTWATCH_RUNTIME_DIR": str(runtime_dir)})
    counter = Counter()
    ck.track(counter=counter)
    ck.resume()
    with ck:
        runtime_dir.mkdir(mode=0o700)
        ck._link._looked_at = 0.0
        daemon.order(Do.STOP, 2)
        assert daemon.wait(lambda s: s.seq == 2).phase == "seen"
        counter.train(0)
        assert ck.step(1)
    assert daemon.status().saved.seq == 2


def test_a_signal_on_the_way_out_changes_nothing(make: Make, daemon: Daemon) -> None:
    """The order came first and the save is durable; the signal that follows must not turn 75 into a death."""
    ck, counter = make(every_steps=1000)
    ck.resume()
    with ck:
        daemon.order(Do.STOP, 2)
        counter.train(0)
        daemon.wait(lambda s: s.phase == "seen")
        assert ck.step(1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert ck.exit_code == 75


def test_a_stop_is_seen_while_saves_fail(make: Make, tmp_path: Path, daemon: Daemon) -> None:
    """A trainer whose saves fail still hears, says so, and tries to the last."""
    broken = Broken(tmp_path / "store" / "run")
    ck, counter = make(broken, every_steps=1)
    ck.resume()
    with ck:
        broken.refusals = 1
        counter.train(0)
        assert not ck.step(1)
        assert daemon.status().phase == "failed"
        daemon.order(Do.STOP, 6)
        assert daemon.wait(lambda s: s.seq == 6).phase == "seen"
        counter.train(1)
        assert ck.step(2)
    assert ck.exit_code == 75
    assert daemon.status().saved.seq == 6


def test_the_loop_looks_at_no_files(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread does; where many ranks have something to do at the end of each step, that costs no file."""
    look = Orders.look
    looks: list[str] = []

    def counted(orders: Orders) -> None:
        looks.append(threading.current_thread().name)
        look(orders)

    ck, counter = make(every_steps=1000)
    ck.resume()
    with ck:
        counter.train(0)
        ck.step(1)
        ck._each_is_boundary = True  # as on many ranks
        monkeypatch.setattr(Orders, "look", counted)
        for step in range(2, 100):
            ck.step(step)
        assert "MainThread" not in looks
        monkeypatch.undo()
    assert ck.exit_code == 0
