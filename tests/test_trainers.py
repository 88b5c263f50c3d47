# SPDX-License-Identifier: Apache-2.0
"""What is believed of `status/`, and what it comes to."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from spotwatch import handshake
from spotwatch.handshake import Saved
from spotwatch.model import Do
from spotwatch.policy import Policy, estimate
from spotwatch.records import Order
from spotwatch.testing import EPOCH
from spotwatch.trainers import NOTHING_KNOWN, Trainers
from tests.trainers_bench import SAVED, STATUS, Bench, on


def test_nobody(tmp_path: Path) -> None:
    """Nothing is known, and nothing is zero but `up`."""

    async def story(bench: Bench) -> None:
        assert bench.look().facts() == NOTHING_KNOWN

    on(tmp_path, story)


def test_facts(tmp_path: Path) -> None:
    """Ten steps since the save at two a second: five seconds are at risk."""

    async def story(bench: Bench) -> None:
        facts = bench.look(STATUS).facts()
        assert facts == {
            "is_trainer_up": 1,
            "phase": "training",
            "step": 100,
            "steps_per_second": 2.0,
            "saved_step": 90,
            "saved_at": EPOCH.timestamp(),
            "stall_seconds": 0.1,
            "save_seconds": 2.0,
            "size_bytes": 10,
            "work_at_risk_seconds": 5.0,
        }

    on(tmp_path, story)


def test_one_that_died_before_its_first_save_is_remembered(tmp_path: Path) -> None:
    """What it did last tells a trainer that fell silent from none at all."""

    async def story(bench: Bench) -> None:
        bench.look(replace(STATUS, saved=Saved()))
        await bench.clock.sleep(60)
        facts = bench.look().facts()
        assert (facts["is_trainer_up"], facts["phase"], facts["saved_at"]) == (0, "training", None)

    on(tmp_path, story)


def test_of_several_the_one_with_most_at_risk(tmp_path: Path) -> None:
    """Whose loss would be the greatest is shown."""

    async def story(bench: Bench) -> None:
        assert bench.look(STATUS, replace(STATUS, run_id="b", step=500)).facts()["step"] == 500

    on(tmp_path, story)


@pytest.mark.parametrize(
    ("speed", "saved", "at_risk"),
    [
        (0.0, SAVED, None),
        (2.0, Saved(), 50.0),
        (2.0, replace(SAVED, step=100), 0.0),
        (2.0, replace(SAVED, step=200), 0.0),
    ],
)
def test_work_at_risk(tmp_path: Path, speed: float, saved: Saved, at_risk: float | None) -> None:
    """Unknown without a speed; all of it without a save; never negative."""

    async def story(bench: Bench) -> None:
        facts = bench.look(replace(STATUS, steps_per_second=speed, saved=saved)).facts()
        assert facts["work_at_risk_seconds"] == at_risk

    on(tmp_path, story)


@pytest.mark.parametrize(
    ("age", "phase", "is_fresh"),
    [
        (0, "training", True),
        (15, "training", True),
        (15.1, "training", False),
        (-16, "training", False),
        (0, "finished", False),
    ],
)
def test_fresh(tmp_path: Path, age: float, phase: str, is_fresh: bool) -> None:
    """Younger than 15 s, not from the future, not finished."""

    async def story(bench: Bench) -> None:
        status = replace(STATUS, at=EPOCH - timedelta(seconds=age), phase=phase)
        assert bool(bench.look(status).fresh()) is is_fresh

    on(tmp_path, story)


@pytest.mark.parametrize("code", [0, 75, 76, 77])
def test_one_that_has_left_is_not_waited_for(tmp_path: Path, code: int) -> None:
    """Its last word is said: a pod need not stay fifteen seconds longer for a trainer that is gone."""

    async def story(bench: Bench) -> None:
        trainers = bench.look(replace(STATUS, phase="durable", exit_code=code))
        assert trainers.fresh() == []
        assert trainers.left_with() == {code}
        assert trainers.facts()["is_trainer_up"] == 0

    on(tmp_path, story)


@pytest.mark.parametrize(("code", "answer"), [(75, "durable"), (76, ""), (None, "")])
@pytest.mark.parametrize("do", [Do.FLUSH, Do.STOP])
def test_one_that_left_with_all_its_work_has_answered(
    tmp_path: Path, code: int | None, answer: str, do: Do
) -> None:
    """A signal that came before the order made it save and leave: nothing is left to be saved."""

    async def story(bench: Bench) -> None:
        trainers = bench.look(replace(STATUS, phase="durable", exit_code=code))
        order = Order(seq=7, do=do, why="w", at=EPOCH + timedelta(seconds=1), boot=0.0)
        assert trainers.answer_to(order, is_flag_gone=False, are_processes_gone=True) == answer

    on(tmp_path, story)


def test_a_save_is_recorded_once(tmp_path: Path) -> None:
    """However often it is reported, and again when another one comes; it dates from when it was durable."""

    async def story(bench: Bench) -> None:
        await bench.clock.sleep(4)
        for _ in range(3):
            bench.look(replace(STATUS, at=bench.clock.now()))
        bench.look(replace(STATUS, at=bench.clock.now(), saved=replace(SAVED, step=95)))

    first, second = on(tmp_path, story).named("saved")
    assert (first.data["step"], second.data["step"]) == (90, 95)
    assert first.data["boot"] == 1000.0
    assert first.data["step_seconds"] == 0.5


def test_two_runs_in_turn_are_each_recorded_once(tmp_path: Path) -> None:
    """One that saves often does not make the other's last save look new."""

    async def story(bench: Bench) -> None:
        for step in range(10):
            quick = replace(STATUS, run_id="quick", saved=replace(SAVED, step=step))
            bench.look(STATUS, quick)

    names = [event.data["run_id"] for event in on(tmp_path, story).named("saved")]
    assert (names.count("run"), names.count("quick")) == (1, 10)


def test_a_failure_is_told_once_a_change(tmp_path: Path) -> None:
    """Its first word is the reason."""

    async def story(bench: Bench) -> None:
        for error in ("upload: refused", "upload: refused", "", "upload: refused", "verify: crc"):
            bench.look(replace(STATUS, phase="failed", error=error))

    told = [(e.data["reason"], e.data["error"]) for e in on(tmp_path, story).named("save_failed")]
    assert told == [("upload", "upload: refused"), ("upload", "upload: refused"), ("verify", "verify: crc")]


@pytest.mark.parametrize(
    ("phase", "code", "age", "count"),
    [
        ("failed", None, 0, 1),
        ("uploading", None, 0, 1),
        ("failed", 76, 0, 0),
        ("failed", 77, 0, 0),
        ("failed", None, 16, 0),
        ("training", None, 0, 0),
        ("waiting", None, 0, 0),
        ("durable", None, 0, 0),
    ],
)
def test_an_error_that_is_no_saves(
    tmp_path: Path, phase: str, code: int | None, age: float, count: int
) -> None:
    """A run that crashed, one that waits, a checkpoint passed over, an old file: no save has failed."""

    async def story(bench: Bench) -> None:
        at = EPOCH - timedelta(seconds=age)
        bench.look(replace(STATUS, at=at, phase=phase, error="RuntimeError('boom')", exit_code=code))

    assert len(on(tmp_path, story).named("save_failed")) == count


def test_an_error_known_before_the_save_is_not_the_saves(tmp_path: Path) -> None:
    """A checkpoint passed over at the resume stays told until a save succeeds, and none has failed."""

    async def story(bench: Bench) -> None:
        for phase in ("training", "staged", "uploading"):
            bench.look(replace(STATUS, phase=phase, error="step-7: checksum differs"))

    assert on(tmp_path, story).named("save_failed") == []


def test_of_those_that_are_silent_the_one_that_spoke_last(tmp_path: Path) -> None:
    """One that was killed, long replaced by a run that has finished, does not look like a silent trainer."""

    async def story(bench: Bench) -> None:
        killed = replace(STATUS, run_id="a", at=EPOCH - timedelta(hours=1), step=10**6)
        finished = replace(STATUS, run_id="b", phase="finished", exit_code=0, at=EPOCH)
        from_the_future = replace(killed, run_id="c", at=EPOCH + timedelta(hours=1))
        bench.look(killed, finished, from_the_future)
        await bench.clock.sleep(60)
        facts = bench.look().facts()
        assert (facts["is_trainer_up"], facts["phase"], facts["work_at_risk_seconds"]) == (
            0,
            "finished",
            None,
        )

    on(tmp_path, story)


def test_a_stranger_s_status(tmp_path: Path) -> None:
    """It does not count, is told once, and counts when its user turns out to be the trainer's."""

    async def story(bench: Bench) -> None:
        bench.owners = set()
        for _ in range(3):
            assert bench.look(STATUS).fresh() == []
        bench.owners = {os.geteuid()}
        assert len(bench.look().fresh()) == 1

    assert len(on(tmp_path, story).named("status_refused")) == 1


@pytest.mark.parametrize("seconds", [-5, float("inf"), 1e300, "12", None, True])
def test_hostile_numbers_change_no_plan_beyond_reason(tmp_path: Path, seconds: object) -> None:
    """A save time out of bounds is refused or clamped; the estimate stays a number of seconds."""

    async def story(bench: Bench) -> None:
        row = json.loads(STATUS.to_bytes())
        row["saved"]["save_seconds"] = seconds
        (tmp_path / "status" / "run.json").write_text(json.dumps(row), encoding="utf-8")
        bench.look()
        assert 0 <= estimate(Policy(), bench.ledger.measured_saves()) <= handshake.MAX_SECONDS + 600

    on(tmp_path, story)


def test_seen_by_all(tmp_path: Path) -> None:
    """One who has not seen the order, or nobody at all, is no `seen`."""

    async def story(bench: Bench) -> None:
        assert not bench.look().have_seen(1)
        one = replace(STATUS, saved=Saved(), seq=3)
        assert bench.look(one).have_seen(3)
        assert not bench.look(replace(one, run_id="b", seq=2)).have_seen(3)
        assert bench.trainers.highest_seq() == 3

    on(tmp_path, story)


@pytest.mark.parametrize(
    ("ages", "phases", "expected"),
    [
        ([], [], False),
        ([0], ["finished"], True),
        ([0, 0], ["finished", "finished"], True),
        ([0, 0], ["finished", "durable"], False),
        ([0, 60], ["finished", "durable"], True),
        ([60], ["finished"], False),
    ],
)
def test_finished_by_themselves(tmp_path: Path, ages: list[int], phases: list[str], expected: bool) -> None:
    """All who have spoken in our life; what earlier runs left behind says nothing."""

    async def story(bench: Bench) -> None:
        for number, (age, phase) in enumerate(zip(ages, phases, strict=True)):
            at = EPOCH - timedelta(seconds=age)
            bench.look(replace(STATUS, run_id=f"r{number}", at=at, phase=phase))
        assert bench.trainers.have_finished() is expected

    on(tmp_path, story)


def test_a_look_that_fails_is_told_once_and_changes_nothing(tmp_path: Path) -> None:
    """What was known stays, and the caller goes on: a stop must go out whatever is wrong with a look."""

    async def story(bench: Bench) -> None:
        is_failing = False

        def owners() -> set[int]:
            if is_failing:
                raise ZeroDivisionError("no owners")
            return bench.owners

        trainers = Trainers(tmp_path, owners=owners, ledger=bench.ledger, clock=bench.clock)
        handshake.write_status(tmp_path, STATUS)
        for is_failing in (False, True, True, False, True):  # noqa: B007 - read by `owners`
            trainers.look()
            assert [status.run_id for status in trainers.fresh()] == ["run"]

    errors = [event.data["error"] for event in on(tmp_path, story).named("unexpected")]
    assert errors == ["trainers' statuses: ZeroDivisionError: no owners"] * 2
