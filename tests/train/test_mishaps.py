# SPDX-License-Identifier: Apache-2.0
"""What must never happen: a durable that is none, a lease given away, a wait without end, a run left held."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwatch.errors import ConfigError
from spotwatch.model import Do
from spotwatch.train import last_save, movement
from spotwatch.train.lease.lease import read
from spotwatch.train.parts import Body
from spotwatch.train.store import OnPart
from spotwatch.train.stores.directory import DirectoryStore

from .conftest import Counter, Daemon, Make

pytestmark = pytest.mark.usefixtures("handlers_come_back")


class Odd(DirectoryStore):
    """A store whose next upload does something of the test's choice first."""

    deed: Callable[[OnPart], None] = staticmethod(lambda _on_part: None)

    def upload(self, key: str, body: Body, on_part: OnPart) -> tuple[str, ...]:
        """Do it, then store."""
        self.deed(on_part)
        return super().upload(key, body, on_part)


def test_what_was_never_healthy_acknowledges_nothing(make: Make, daemon: Daemon, tmp_path: Path) -> None:
    """Without anything to go on from, nothing is answered, no flag removed, and nothing saved on and on."""
    ck, counter = make(every_steps=1000)
    ck.resume()
    flag = daemon.runtime_dir / "checkpoint-now"
    with ck:
        counter.train(0)
        daemon.order(Do.FLUSH, 7)
        assert daemon.flag(7)
        daemon.wait(lambda status: status.phase == "seen")
        for step in range(1, 4):
            assert not ck.step(step, healthy=False)
        status = daemon.status()
        assert (status.phase, status.saved.seq, status.saved.url) == ("failed", 0, "")
        assert flag.exists()
        assert len(list((tmp_path / "store" / "run").glob("step-*"))) == 1
        assert not ck.step(4)
        daemon.order(Do.FLUSH, 8)
        daemon.wait(lambda status: status.seq == 8)
        assert not ck.step(5)
        assert daemon.status().saved.seq == 8
        assert not flag.exists()
    assert ck.exit_code == 0


def test_a_forked_child_leaves_run_and_status_to_its_parent(
    make: Make, daemon: Daemon, tmp_path: Path
) -> None:
    """Whether it ends by itself or by an exception inside the loop, the lease stays held."""
    ck, counter = make(every_steps=1000)
    ck.resume()
    with ck:
        counter.train(0)
        ck.step(1)
        child = os.fork()
        if child == 0:
            try:
                ck.__exit__(ValueError, ValueError(), None)
                ck._life._release_at_exit()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        claim = read(DirectoryStore(tmp_path / "store" / "run"))
        assert claim is not None
        assert claim.released == ""
        assert daemon.status().phase == "training"
    assert ck.exit_code == 0


def test_a_store_that_hangs_does_not_hold_up_the_exit(make: Make, tmp_path: Path) -> None:
    """When no time is left and nothing moves, the answer is 76; an upload that moves is waited for."""
    store = Odd(tmp_path / "store" / "run")
    freed = threading.Event()

    def hang(_on_part: OnPart) -> None:
        freed.wait(60)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(movement, "QUIET_SECONDS", 0.5)
        patch.setattr(last_save, "_TRIES_SECONDS", 0.2)
        ck, counter = make(store, every_steps=1, blocking=False)
        ck.resume()
        with ck:
            store.deed = hang
            counter.train(0)
            assert not ck.step(1)
            os.kill(os.getpid(), signal.SIGTERM)
            began = time.monotonic()
            assert ck.step(2)
            assert time.monotonic() - began < 30
        assert ck.exit_code == 76
        freed.set()
        ck._saver._background.join()

        def slowly(on_part: OnPart) -> None:
            for sent in range(1, 9):
                on_part(sent)
                time.sleep(0.15)

        again, counter = make(store, every_steps=1000, blocking=False)
        again.resume()
        with again:
            store.deed = slowly
            counter.train(1)
            os.kill(os.getpid(), signal.SIGTERM)
            assert again.step(2)
        assert again.exit_code == 75


def test_a_pointer_that_hangs_does_not_hold_up_the_exit_either(make: Make, tmp_path: Path) -> None:
    """All bytes are sent and the manifest is not taken: that too is nothing that moves."""
    store = Odd(tmp_path / "store" / "run")
    freed = threading.Event()

    def hang(*_args: object) -> None:
        freed.wait(60)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(movement, "QUIET_SECONDS", 0.5)
        patch.setattr(last_save, "_TRIES_SECONDS", 0.2)
        ck, counter = make(store, every_steps=1000)
        ck.resume()
        with ck:
            patch.setattr(store, "put", hang)
            counter.train(0)
            os.kill(os.getpid(), signal.SIGTERM)
            assert ck.step(1)
        assert ck.exit_code == 76
        freed.set()
        ck._saver._background.join()


def test_an_error_that_nobody_foresaw_ends_no_training(make: Make, daemon: Daemon, tmp_path: Path) -> None:
    """It is a failed save like any other: told, and tried again."""
    store = Odd(tmp_path / "store" / "run")

    def fail(_on_part: OnPart) -> None:
        raise MemoryError("no more")

    ck, counter = make(store, every_steps=1)
    ck.resume()
    with ck:
        store.deed = fail
        counter.train(0)
        assert not ck.step(1)
        assert (daemon.status().phase, daemon.status().error) == ("failed", "other: no more")
        store.deed = lambda _on_part: None
        ck._schedule.pause_until = ck._schedule.next_at = 0.0
        assert not ck.step(2)
        assert daemon.status().saved.step == 2
        store.deed = fail
        with pytest.raises(MemoryError):
            ck.save(3)
        assert daemon.status().phase == "failed"
        store.deed = lambda _on_part: None
    assert ck.exit_code == 0


def test_without_a_thread_the_loop_waits(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on threads costs time, not the save, and not the next one either."""
    ck, counter = make(every_steps=1, blocking=False)
    ck.resume()
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "spotwatch-save":
            raise RuntimeError("can't start new thread")
        start(thread)

    with ck:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        for step in range(2):
            counter.train(step)
            assert not ck.step(step + 1)
            assert ck._saver.saved_step == step + 1
        monkeypatch.undo()
    assert ck.exit_code == 0


def test_an_exit_that_fails_leaves_nothing_held(make: Make, daemon: Daemon, tmp_path: Path) -> None:
    """Heartbeat, lease and signals end with the loop, however it is left."""
    ck, counter = make(every_steps=1000)
    ck.resume()

    def ask() -> bool:
        raise ArithmeticError("no loss yet")

    def leave() -> None:
        with ck:
            counter.train(0)
            ck.step(1, healthy=ask)

    with pytest.raises(ArithmeticError):
        leave()
    assert (daemon.status().phase, ck.exit_code) == ("failed", 76)
    claim = read(DirectoryStore(tmp_path / "store" / "run"))
    assert claim is not None
    assert claim.released == "failed"


@pytest.mark.parametrize(("name", "what"), [("counter", "is tracked already"), ("a/b", "contains a slash")])
def test_a_name_that_cannot_be_tracked_is_refused(make: Make, name: str, what: str) -> None:
    """The message names it, and says which of both faults it is."""
    ck, _ = make()
    with pytest.raises(ConfigError, match=f"track: .*'{name}' {what}"):
        ck.track(**{name: Counter()})


def test_what_is_tracked_too_late_is_refused(make: Make) -> None:
    """It would be saved, but was not restored: the run would begin anew in part."""
    ck, counter = make(every_steps=1)
    ck.resume()
    with pytest.raises(ConfigError, match="after resume"):
        ck.track(late=Counter())
    with ck:
        counter.train(0)
        with pytest.raises(ConfigError, match="after resume"):
            ck.track(late=Counter())
        ck.step(1)
    ck.track(late=Counter())


def test_what_is_no_truth_value_is_named(make: Make) -> None:
    """A tensor of several values says neither yes nor no, and the message names the argument."""

    class Many:
        def __bool__(self) -> bool:
            raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")

    ck, counter = make(every_steps=1000)
    ck.resume()
    with ck:
        counter.train(0)
        with pytest.raises(ConfigError, match="healthy: wants True or False"):
            ck.save(1, healthy=Many())  # type: ignore[arg-type]  # as people do
        ck.step(1)
    assert ck.exit_code == 0
