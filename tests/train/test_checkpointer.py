# SPDX-License-Identifier: Apache-2.0
"""The loop's object: when it saves, what it refuses, what it costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from spotwatch.errors import ConfigError, StoreError
from spotwatch.train import Checkpointer, store
from spotwatch.train.stores.directory import DirectoryStore

from .conftest import Broken, Counter, Daemon, Make, dirs, train

pytestmark = pytest.mark.usefixtures("handlers_come_back")


def test_each_multiple_and_the_last_step_are_saved(make: Make, tmp_path: Path, daemon: Daemon) -> None:
    """`every_steps` saves each of them, and a loop that ends saves its last step."""
    ck, counter = make(every_steps=10, keep=9)
    assert train(ck, counter, 35) == 35
    assert [name[:14] for name in dirs(tmp_path)] == [f"step-0000000{n}" for n in (10, 20, 30, 35)]
    assert ck.exit_code == 0
    status = daemon.status()
    assert (status.phase, status.step, status.saved.step) == ("finished", 35, 35)
    assert status.saved.url.endswith(dirs(tmp_path)[-1])
    assert status.saved.size_bytes > 0
    assert status.saved.save_seconds > 0


def test_keep(make: Make, tmp_path: Path) -> None:
    """As many as asked for stay, and never fewer than LATEST and its parent."""
    for keep, left in ((3, 3), (1, 2)):
        ck, counter = make(every_steps=5, keep=keep)
        train(ck, counter, (counter.steps or [0])[-1] + 50 * (4 - keep))
        assert len(dirs(tmp_path)) == left


def test_seconds(make: Make, tmp_path: Path) -> None:
    """By the clock, when so many seconds have passed."""
    ck, counter = make(every_seconds=0.05)
    ck.resume()
    with ck:
        until = time.monotonic() + 10
        step = 0
        while len(dirs(tmp_path) if step and (tmp_path / "store").exists() else []) < 2:
            assert time.monotonic() < until
            counter.train(step)
            step += 1
            assert not ck.step(step)
    assert step > 10


def test_a_bound_that_cannot_be_kept_is_said(
    make: Make, daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log, after the first step, which is saved to find out; once only, and not as a failed save."""
    ck, counter = make(max_lost_seconds=1e-6)
    ck.resume()
    with ck:
        counter.train(0)
        ck.step(1)
        assert daemon.status().saved.step == 1
        assert daemon.status().error == ""
        for step in (2, 3):
            counter.train(step)
            ck.step(step)
    assert ck.exit_code == 0
    [said] = [r.message for r in caplog.records if "cannot be kept" in r.message]
    assert said.startswith("max_lost_seconds=1e-06 cannot be kept: a save takes ")


def test_a_finished_run_finishes_again(make: Make, tmp_path: Path) -> None:
    """The command of a finished run does nothing and exits 0."""
    ck, counter = make(every_steps=10)
    train(ck, counter, 10)
    again, counter = make(every_steps=10)
    assert train(again, counter, 10) == 10
    assert again.exit_code == 0
    assert len(dirs(tmp_path)) == 1


def test_a_failed_save_is_no_end(make: Make, tmp_path: Path, daemon: Daemon) -> None:
    """Training goes on, the status says what is wrong, and the next try succeeds."""
    broken = Broken(tmp_path / "store" / "run")
    broken.refusals = 1
    ck, counter = make(broken, every_steps=2)
    ck.resume()
    with ck:
        counter.train(0)
        ck.step(1)
        assert not ck.step(2)
        assert (daemon.status().phase, daemon.status().error) == ("failed", "store: the bucket is on fire")
        assert not ck.step(3)
        assert not dirs(tmp_path)
        ck._schedule.pause_until = ck._schedule.next_at = 0.0
        assert not ck.step(3)
        assert (daemon.status().saved.step, daemon.status().error) == (3, "")
    assert ck.exit_code == 0


def test_failing_for_long_raises(make: Make, tmp_path: Path) -> None:
    """After as many failures in a row as allowed, training without saves is not training."""
    broken = Broken(tmp_path / "store" / "run")
    broken.refusals = 10**9
    ck, _ = make(broken, every_steps=1, give_up_after=2)
    ck.resume()

    def go_on() -> None:
        with ck:
            assert not ck.step(1)
            ck._schedule.pause_until = 0.0
            ck.step(2)

    with pytest.raises(StoreError, match="on fire"):
        go_on()
    assert ck.exit_code == 76


def test_a_run_taken_over_is_left(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """When another process has gone on with the run, this one stops with 77 and writes nothing."""
    ck, counter = make(every_steps=5)
    ck.resume()
    other, rival = make(every_steps=5)
    train(other, rival, 5)
    third, rival = make(every_steps=5)
    train(third, rival, 10)
    with ck:
        counter.train(0)
        assert not ck.step(5)  # the save of this step fails, and the next one is not needed to know it
        assert ck.step(6)
    assert ck.exit_code == 77
    assert "was not released" not in caplog.text  # nobody waits for it
    with pytest.raises(ConfigError, match="entered before"):
        ck.save(6)
    assert make()[0].resume() == 10


def test_two_that_resumed_together_do_not_take_turns(make: Make) -> None:
    """The one that resumed last has the run; the other ends with 77 at its next save, and leaves nothing."""
    train(*make(every_steps=1), 3)
    (first, one), (second, other) = make(every_steps=1), make(every_steps=1)
    assert (first.resume(), second.resume()) == (3, 3)
    with first, second:
        one.train(3)
        assert not first.step(4)
        assert first.step(5)
        other.train(3)
        assert not second.step(4)
    assert (first.exit_code, second.exit_code) == (77, 0)
    assert make()[0].resume() == 4


def test_without_resume_nothing_is_written(make: Make, tmp_path: Path) -> None:
    """A loop that forgot it would put LATEST back to its own first step: it is refused at once."""
    train(*make(every_steps=1), 3)
    before = dirs(tmp_path)
    ck, _ = make(every_steps=1)
    for use in (ck.__enter__, lambda: ck.step(1), lambda: ck.save(1)):
        with pytest.raises(ConfigError, match=r"resume\(\) was not called"):
            use()
    assert ck.exit_code == 76
    assert dirs(tmp_path) == before
    assert make()[0].resume() == 3


def test_a_second_with_wants_a_second_resume(make: Make) -> None:
    """What follows the first `with` would not be saved at its end, so it is refused, inside it too."""
    ck, counter = make(every_steps=1000)
    ck.resume()
    with ck:
        counter.train(0)
        ck.step(1)
        with pytest.raises(ConfigError, match="entered before"):
            ck.__enter__()
    for use in (ck.__enter__, lambda: ck.step(2)):
        with pytest.raises(ConfigError, match="entered before"):
            use()
    assert train(ck, counter, 5) == 5
    assert ck.exit_code == 0
    assert make()[0].resume() == 5


def test_a_step_after_the_stop_is_refused(make: Make) -> None:
    """Once `with` is left for a stop, nothing hears or saves any more."""
    ck, counter = make(every_steps=1000)
    ck.resume()
    with ck:
        counter.train(0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert ck.step(1)
    with pytest.raises(ConfigError, match="entered before"):
        ck.step(2)
    assert ck.exit_code == 75


def test_a_run_may_go_back_inside_the_loop(make: Make) -> None:
    """`resume` within `with` restores the newest checkpoint, say after a loss that is no number."""
    ck, counter = make(every_steps=2)
    ck.resume()
    with ck:
        for step in range(3):
            counter.train(step)
            ck.step(step + 1)
        assert ck.resume() == 2
        assert counter.steps == [0, 1]
        counter.train(2)
        ck.step(3)
    assert ck.exit_code == 0
    again, counter = make()
    assert (again.resume(), counter.steps) == (3, [0, 1, 2])


def test_a_loop_without_a_step_has_a_checkpoint(make: Make) -> None:
    """A run of no steps that says 0 can be gone on from."""
    ck, counter = make()
    assert train(ck, counter, 0) == 0
    assert ck.exit_code == 0
    ck, counter = make()
    ck.resume()
    assert ck._life.registry.parent is not None


def test_state_that_becomes_unsavable_ends_no_training(make: Make, daemon: Daemon) -> None:
    """A periodic save that fails so is said, and the next one that can be made is."""
    ck, counter = make(every_steps=1)
    ck.resume()
    with ck:
        counter.steps = [object()]  # type: ignore[list-item]
        assert not ck.step(1)
        assert "counter/steps/0" in daemon.status().error
        ck._schedule.pause_until = ck._schedule.next_at = 0.0
        counter.steps = [0]
        assert not ck.step(2)
        assert (daemon.status().saved.step, daemon.status().error) == (2, "")
    assert ck.exit_code == 0


def test_state_that_stays_unsavable_is_76(make: Make, daemon: Daemon) -> None:
    """The last save says so at once, for waiting mends nothing; many in a row end the loop."""
    ck, counter = make(every_steps=1, give_up_after=1)
    ck.resume()
    with ck:
        del counter.luck
        with pytest.raises(ConfigError, match=r"counter: its state_dict\(\) fails: AttributeError"):
            ck.step(1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert ck.step(2)
    assert ck.exit_code == 76
    assert daemon.status().phase == "failed"


def test_state_that_cannot_be_saved_is_found_at_the_start(make: Make) -> None:
    """Not at the first notice."""
    ck, counter = make()
    counter.steps.append(object())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"counter/steps/0.*builtins\.object"):
        ck.resume()


def test_without_a_runtime_directory(tmp_path: Path) -> None:
    """No daemon, no status: saving and signals work all the same."""
    missing = str(tmp_path / "none")
    ck = Checkpointer(tmp_path / "store", run_id="run", environ={"SPOTWATCH_RUNTIME_DIR": missing})
    counter = Counter()
    ck.track(counter=counter)
    assert train(ck, counter, 5) == 5
    assert ck.exit_code == 0
    assert not (tmp_path / "none").exists()


def test_an_unwritable_status_is_said_once(
    make: Make, runtime_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A runtime directory that cannot be written to stops nothing."""
    (runtime_dir / "status").write_text("not a directory")
    ck, counter = make(every_steps=5)
    assert train(ck, counter, 20) == 20
    assert len([r for r in caplog.records if "cannot be told" in r.message]) == 1


def test_the_environment_decides(make: Make, environ: dict[str, str], tmp_path: Path) -> None:
    """A rehearsal replaces store and run without touching the code."""
    environ |= {"SPOTWATCH_CHECKPOINT_URL": str(tmp_path / "scratch"), "SPOTWATCH_RUN_ID": "drill"}
    ck, counter = make(DirectoryStore(tmp_path / "real"), every_steps=5)
    train(ck, counter, 5)
    assert (tmp_path / "scratch" / "drill" / "LATEST").exists()
    assert not (tmp_path / "real").exists()


def test_nothing_tracked_is_refused(environ: dict[str, str], tmp_path: Path) -> None:
    """A Checkpointer without state would save nothing, durably."""
    with pytest.raises(ConfigError, match="track"):
        Checkpointer(tmp_path, run_id="run", environ=environ).resume()


def test_a_step_with_nothing_due_is_cheap(make: Make) -> None:
    """Well below 20 microseconds even on a loaded machine; `benchmarks/step_overhead.py` measures it."""
    ck, _ = make(every_steps=10**9)
    ck.resume()
    with ck:
        best = min(_time_steps(ck, 1000 * turn) for turn in range(5))
    assert best < 20e-6


def _time_steps(ck: Checkpointer, begin: int) -> float:
    begun = time.perf_counter()
    for step in range(begin, begin + 1000):
        ck.step(step)
    return (time.perf_counter() - begun) / 1000


def test_importing_needs_no_torch_and_no_boto3() -> None:
    """The package imports quickly, and without what a trainer may not have."""
    heavy = "('torch', 'boto3', 'numpy', 'aiohttp')"
    code = f"import sys, spotwatch.train; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_on_an_s3_server(make: Make, s3: Any, environ: dict[str, str]) -> None:
    """The whole way against a server: save, stop, resume, prune."""
    environ |= s3.environ
    ck, counter = make("s3://bucket/whole", every_steps=5, keep=2)
    train(ck, counter, 20)
    again, counter = make("s3://bucket/whole")
    assert again.resume() == 20
    assert counter.steps == list(range(20))
    keys = [e.key for e in store.open_store("s3://bucket/whole", "run", environ).list()]
    assert len(keys) == 6  # two checkpoints of two files each, LATEST, LEASE
