# SPDX-License-Identifier: Apache-2.0
"""The last save of several ranks: whatever fails on whichever, all end alike, and none is left waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spotwatch.errors import ConfigError, RunTaken, StoreError
from spotwatch.train import attendance, last_save, movement
from spotwatch.train.last_save import LastSave
from spotwatch.train.link import Link
from spotwatch.train.parts import Held
from spotwatch.train.saving import Saver
from spotwatch.train.schedule import Schedule
from spotwatch.train.state.state import Snapshot

from .faulty import BODY, PART_BYTES, FaultyStore, registry, steps
from .seats import Seat, play

_RANKS = 2


@dataclass
class Scene:
    """A run of some ranks on one store, and what each of them does there."""

    environ: dict[str, str]
    store: FaultyStore = field(default_factory=FaultyStore)
    freed: threading.Event = field(default_factory=threading.Event)
    """Set: what hangs goes on."""
    is_copy: bool = True

    def saver(self, seat: Seat) -> tuple[Saver, LastSave]:
        """Return what saves on one rank, and saves last."""
        schedule = Schedule("auto", None, None, None)
        link = Link("run", self.environ, lambda: 1, speaks=False)
        ours = registry(self.store)
        ours.writer = "one for all ranks"
        saver = Saver(ours, schedule, link, 3, None)
        saver.begin(seat, lambda: Snapshot(Held(memoryview(BODY), PART_BYTES), {}, is_copy=self.is_copy))
        return saver, LastSave(saver, schedule, link, seat)

    def save_last(self, seat: Seat) -> bool:
        """Save on one rank."""
        return self.saver(seat)[1].make(1, healthy=True)

    def hang(self, deed: str) -> None:
        """Let what begins so hang until the test is over."""

        def before(text: str) -> None:
            if text.startswith(deed):
                self.freed.wait(60)

        self.store.before = before

    @property
    def steps(self) -> list[int]:
        """Return what is durable."""
        return [step for _, step in steps(registry(self.store))]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Return a run whose last save has little time, and which compares notes often."""
    monkeypatch.setattr(movement, "QUIET_SECONDS", 0.5)
    monkeypatch.setattr(movement, "_COMPARE_SECONDS", 0.05)
    monkeypatch.setattr(last_save, "_TRIES_SECONDS", 0.1)
    made = Scene({"SPOTWATCH_RUNTIME_DIR": str(tmp_path)})
    yield made
    made.freed.set()


def test_all_ranks_hear_that_it_is_durable(scene: Scene) -> None:
    """Each rank says so, and there is one checkpoint."""
    assert play(_RANKS, scene.save_last) == [True, True]
    assert scene.steps == [1]


@pytest.mark.parametrize(
    "deed", ["put manifest.json", "upload rank-00001", "upload rank-00000", "put_if LATEST"]
)
def test_a_store_that_hangs_for_one_rank_holds_up_none(scene: Scene, deed: str) -> None:
    """Who waits for the other rank leaves with it: all say 76, soon, though only one knows that it hangs."""
    scene.hang(deed)
    began = time.monotonic()
    assert play(_RANKS, scene.save_last) == [False, False]
    assert time.monotonic() - began < 10, "the play itself gives up after 15 s"


def test_a_manifest_that_comes_too_late_for_one_is_too_late_for_all(scene: Scene) -> None:
    """Where the save becomes durable just as it is given up, nobody waits, and nobody raises."""
    scene.hang("put manifest.json")

    def act(seat: Seat) -> bool:
        saver, last = scene.saver(seat)
        durable = last.make(1, healthy=True)
        scene.freed.set()
        saver._background.join()
        return durable

    assert play(_RANKS, act) == [False, False]
    assert scene.steps == [1]


def test_one_rank_that_fails_makes_all_try_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second attempt is everybody's, and durable for everybody."""
    monkeypatch.setattr(last_save, "_TRIES_SECONDS", 30.0)
    monkeypatch.setattr(last_save, "pause_seconds", lambda _: 0.01)
    failures = [StoreError("the link is down")]

    def once(deed: str) -> None:
        if deed.startswith("upload rank-00001") and failures:
            raise failures.pop()

    scene.store.before = once
    assert play(_RANKS, scene.save_last) == [True, True]
    assert scene.steps == [1]


def test_only_one_rank_that_has_not_heard_of_it_makes_all_save_once_more(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Durable for some is not enough: a rank that says 76 beside one that says 75 would be believed."""
    monkeypatch.setattr(last_save, "_TRIES_SECONDS", 30.0)
    monkeypatch.setattr(last_save, "pause_seconds", lambda _: 0.01)
    take, lost = Saver._take, ["an answer"]

    def forgetful(self: Saver) -> None:
        take(self)
        if lost and not self._world.is_first:
            raise StoreError(f"{lost.pop()} is lost")

    monkeypatch.setattr(Saver, "_take", forgetful)
    assert play(_RANKS, scene.save_last) == [True, True]


@pytest.mark.parametrize("rank", range(_RANKS))
def test_a_run_that_is_taken_is_taken_on_all_ranks(scene: Scene, rank: int) -> None:
    """Whichever of them learns of it: all end with 77."""

    def act(seat: Seat) -> tuple[bool, bool]:
        saver, last = scene.saver(seat)
        if seat.rank == rank:
            saver._registry.lease_check = taken
        return last.make(1, healthy=True), saver.taken

    assert play(_RANKS, act) == [(False, True)] * _RANKS
    assert scene.steps == []


def taken() -> None:
    """Say that the run is another's."""
    raise RunTaken("machine-2 has taken the run")


@pytest.mark.parametrize("error", [ConfigError("a value has no safe form"), ValueError("not foreseen")])
def test_what_cannot_be_saved_on_one_rank_ends_all(scene: Scene, error: Exception) -> None:
    """No rank tries again alone."""

    def act(seat: Seat) -> bool:
        saver, last = scene.saver(seat)

        def capture() -> Snapshot:
            seat.everyone(None)
            raise error if seat.rank == 1 else StoreError("rank 1 has failed")

        saver._capture = capture
        return last.make(1, healthy=True)

    assert play(_RANKS, act) == [False, False]


@pytest.mark.parametrize("moment", ["before", "upload", "put manifest.json"])
def test_a_rank_that_has_gone_is_76_not_a_traceback(scene: Scene, moment: str) -> None:
    """Nothing is raised out of the loop, whenever it goes."""

    def act(seat: Seat) -> bool:
        if moment == "before" and seat.rank == 1:
            seat.leave()
            return False
        scene.store.before = partial(leave_at, moment, seat)
        return scene.save_last(seat)

    assert _unchecked(act) == [False, False]


def leave_at(moment: str, seat: Seat, deed: str) -> None:
    """Let a rank be gone when its store is asked for something."""
    if deed.startswith(moment):
        seat.leave()


def _unchecked(act: Callable[[Seat], Any]) -> list[Any]:
    # A rank that has gone does not meet the others as often.
    seats: list[Seat] = []

    def noted(seat: Seat) -> Any:
        seats.append(seat)
        try:
            return act(seat)
        finally:
            seat.rounds = 0

    return play(_RANKS, noted)


def test_a_store_that_answers_slowly_is_waited_for(scene: Scene) -> None:
    """No request of the publication takes too long, all of them together do."""
    answered = threading.Event()

    def slowly(_: str) -> None:
        answered.wait(0.2)
        attendance.moved()  # as a store does with each answer

    scene.store.before = slowly
    assert play(_RANKS, scene.save_last) == [True, True]


@pytest.mark.parametrize("blocks", ["end", "save"])
def test_a_stop_ends_the_wait_for_a_store_that_hangs(scene: Scene, blocks: str) -> None:
    """With blocking=True, in ck.save(), and on a rank that only waits for the one that was told."""
    scene.hang("put manifest.json")

    def act(seat: Seat) -> str:
        saver, _ = scene.saver(seat)
        if seat.rank == 1:
            saver._link.signals.stop = True
        if blocks == "save":
            with pytest.raises(StoreError, match="has taken no more"):
                saver.save(1, healthy=True)
            return "raised"
        saver.start(1, healthy=True)
        return "over" if saver.end() else "left"

    assert play(_RANKS, act) == ["raised" if blocks == "save" else "left"] * _RANKS


def test_what_the_loop_has_given_up_is_not_waited_for_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop while the loop waits for its save is obeyed in 30 s, not in twice as many."""
    monkeypatch.setattr(last_save, "_TRIES_SECONDS", 60.0)
    scene.hang("put manifest.json")

    def act(seat: Seat) -> bool:
        saver, last = scene.saver(seat)
        saver._link.signals.stop = True
        saver.start(1, healthy=True)
        assert not saver.end()
        return last.make(2, healthy=True)

    began = time.monotonic()
    assert play(_RANKS, act) == [False, False]
    assert time.monotonic() - began < 12, "the play itself gives up after 15 s"


def test_a_state_that_is_not_copied_is_given_up_for_good(scene: Scene) -> None:
    """Told to stop, training goes on to its end, and what it changes must never become a checkpoint."""
    scene.is_copy = False
    scene.hang("upload rank-00001")

    def act(seat: Seat) -> bool:
        saver, _ = scene.saver(seat)
        saver._link.signals.stop = seat.rank == 0
        saver.start(1, healthy=True)
        was_busy = saver.busy
        seat.everyone(None)
        scene.freed.set()
        assert saver.end()
        assert isinstance(saver.last_error, StoreError)
        return was_busy

    assert play(_RANKS, act) == [True, True]
    assert scene.steps == []


def test_an_exception_comes_out_although_another_rank_hangs(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """It is in the log at once, and what waits for others is waited for no longer than what hangs here."""
    scene.hang("put manifest.json")

    def act(seat: Seat) -> bool:
        saver, _ = scene.saver(seat)
        saver.start(1, healthy=True)
        if seat.is_first:
            return False
        return saver.end_here(ValueError("boom"))

    assert play(_RANKS, act) == [False, False]
    assert "the loop is left by ValueError('boom'), once step 1 is saved" in caplog.text


def test_a_life_does_not_begin_while_a_save_hangs(scene: Scene) -> None:
    """What one life has left behind would meet the saves of the next."""
    scene.hang("put manifest.json")

    def act(seat: Seat) -> None:
        saver, last = scene.saver(seat)
        last.make(1, healthy=True)
        saver.be_idle(together=False)

    for result in play(_RANKS, act):
        assert isinstance(result, StoreError)
        assert "the save before is still on its way" in str(result)
