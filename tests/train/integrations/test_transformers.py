# SPDX-License-Identifier: Apache-2.0
"""A Trainer that is stopped and killed, wherever it is, ends as if nothing had happened."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.train.integrations.transformers_rows import PLAIN, Noted, at, run
from tests.train.launching import LAUNCH_SECONDS

pytest.importorskip("transformers", reason="the Trainer of transformers is what is tried here")

pytestmark = pytest.mark.timeout(LAUNCH_SECONDS)

_EVALUATES = {"eval_strategy": "steps", "eval_steps": 2}
_BEST = {
    "save_strategy": "steps",
    "save_steps": 2,
    "load_best_model_at_end": True,
    "metric_for_best_model": "loss",
    "save_total_limit": 2,
}
# 22 sentences make 11 batches, so 6 steps an epoch, the last of one batch; each evaluation has 3 batches.
_TWO_EPOCHS = {"num_train_epochs": 2}
_BATCHES, _STEPS = 22, 12


def _lot() -> random.Random:
    return random.Random(20261130)


def _cases() -> list[dict[str, Any]]:
    lot = _lot()
    first, second = sorted(lot.sample(range(2, _BATCHES - 2), 2))
    noise = {"noise": True}
    evaluating = _TWO_EPOCHS | _EVALUATES
    return [
        {
            "name": "stopped",
            "args": _TWO_EPOCHS,
            "data": noise,
            "lives": [PLAIN, at(first), at(second - first), {}],
        },
        {
            "name": "killed",
            "args": _TWO_EPOCHS,
            "data": noise,
            "every": 2,
            "lives": [PLAIN, at(lot.randrange(9, 15), "SIGKILL"), {}],
        },
        {
            "name": "evaluating",
            "args": evaluating,
            "data": noise,
            "lives": [
                PLAIN,
                at(lot.randrange(1, 4), within="eval"),
                at(1, within="eval"),
                at(lot.randrange(4, 6), within="eval"),
                {},
            ],
        },
        {
            "name": "flushed",
            "args": evaluating,
            "data": noise,
            "lives": [PLAIN, {"events": [["eval", 2, "FLUSH"], ["train", 13, "SIGKILL"]]}, {}],
        },
        {
            "name": "first",
            "args": evaluating | {"eval_on_start": True},
            "lives": [PLAIN, at(2, within="eval"), at(3), {}],
        },
        {
            "name": "epoch",
            "args": _TWO_EPOCHS | {"eval_strategy": "epoch"},
            "lives": [PLAIN, at(11), at(2, within="eval"), at(11), {}],
        },
        {"name": "last", "args": _TWO_EPOCHS, "lives": [PLAIN, at(_BATCHES), {}]},
        {
            "name": "best",
            "args": evaluating | _BEST,
            "patience": 2,
            "lives": [PLAIN | {"output": "plain"}, at(7), at(3, within="eval"), {}],
        },
        {
            "name": "plateau",
            "args": evaluating
            | {"lr_scheduler_type": "reduce_lr_on_plateau", "metric_for_best_model": "loss"}
            | {"lr_scheduler_kwargs": {"patience": 0}, "include_num_input_tokens_seen": "all"},
            "lives": [PLAIN, at(8), {}],
        },
        {
            "name": "moved",
            "args": evaluating | _BEST,
            "lives": [PLAIN | {"output": "plain"}, at(12), {"output": "elsewhere", "removes": "own"}],
        },
        {"name": "returns", "args": _TWO_EPOCHS, "options": {"exits": False}, "lives": [PLAIN, at(7), {}]},
        {
            "name": "longer",
            "lives": [
                {"args": {"max_steps": steps, "lr_scheduler_type": "constant"}} | extra
                for steps, extra in ((12, PLAIN), (8, {}), (12, {}))
            ],
        },
    ]


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> Noted:
    """Live all cases once."""
    return run(tmp_path_factory.mktemp("transformers"), _cases())


@pytest.mark.parametrize("case", ["stopped", "evaluating", "first", "epoch", "last", "best", "plateau"])
def test_lives_that_were_stopped_are_one_training(noted: Noted, case: str) -> None:
    """Losses, data, rates, logs and the end are those of an uninterrupted training; no step is done twice."""
    noted.assert_same(case)
    *stopped, finished = noted.exits(case)
    assert (set(stopped), finished) == ({75}, 0)


@pytest.mark.parametrize("case", ["killed", "flushed"])
def test_a_life_that_was_killed_is_gone_on_from_its_last_save(noted: Noted, case: str) -> None:
    """After SIGKILL the steps since the last save are done again, alike to the last bit."""
    noted.assert_same(case, killed=True)
    assert noted.exits(case) == [-9, 0]


def test_an_order_within_an_accumulation_waits_for_its_step(noted: Noted) -> None:
    """Every step is executed once, whole: a stop comes after the second batch of an accumulation."""
    assert noted.executed("stopped") == list(range(_STEPS))
    lengths = [len(rows) for life in (1, 2) for rows in noted.steps("stopped", "train", life=life).values()]
    assert set(lengths) <= {1, 2}
    assert lengths.count(1) <= 1, "only the last step of an epoch has one batch"


def test_an_evaluation_is_broken_off_and_done_first(noted: Noted) -> None:
    """A stop inside an evaluation does not wait for its end, and the next life begins with it."""
    whole = {step: len(rows) for step, rows in noted.steps("evaluating", "eval", life=0).items()}
    for life in (1, 2, 3):
        *_, (step, rows) = noted.steps("evaluating", "eval", life=life).items()
        assert len(rows) < whole[step]
        following = noted.all("evaluating", "eval", life=life + 1)[0]
        trained = noted.all("evaluating", "train", life=life + 1)
        assert following["step"] == step
        assert all(row["step"] >= step for row in trained)


def test_a_flush_inside_an_evaluation_saves_and_goes_on(noted: Noted) -> None:
    """The save holds the state before the evaluation, which goes on; the next life evaluates first."""
    assert len(noted.steps("flushed", "eval", life=1)[2]) == 3
    assert noted.all("flushed", "eval", life=2)[0]["step"] == 2
    assert noted.all("flushed", "train", life=2)[0]["step"] == 2


def test_a_stop_is_no_end_for_the_programs_callbacks(noted: Noted) -> None:
    """A program's own on_train_end is called once in a run, when training has ended."""
    assert [row["life"] for row in noted.all("stopped", "train-end") if row["life"]] == [3]


def test_the_best_checkpoint_of_another_machine_is_not_named(noted: Noted) -> None:
    """On a machine without the folder of the best checkpoint a resume says so, and forgets the folder."""
    assert "is not on this machine" in noted.output
    best = noted.last("moved")["best_in"]
    assert best is None or (best.startswith(str(noted.base)) and "elsewhere" in best)
    assert noted.last("moved")["is"]["best"] == noted.all("moved", "end", life=0)[0]["is"]["best"]


def test_own_checkpoints_go_on_beside_ours(noted: Noted) -> None:
    """save_total_limit holds over the lives: the best one and the last stay."""
    folders = [
        sorted(p.name for p in (noted.base / "store/best" / name).glob("checkpoint-*"))
        for name in ("plain", "own")
    ]
    assert folders[0] == folders[1]
    assert len(folders[1]) == 2


def test_train_returns_where_it_is_asked_to(noted: Noted) -> None:
    """With exits=False a stop returns what was trained so far, and exit_code says that it is no end."""
    first, second = noted.all("returns", "end")[1:]
    assert (first["status"], first["code"], first["returned"][0]) == (0, 75, 4)
    assert (second["status"], second["code"], second["returned"][0]) == (0, 0, _STEPS)
    assert noted.exits("returns") == [0, 0]


def test_a_finished_run_goes_on_when_more_steps_are_wanted(noted: Noted) -> None:
    """A run that ended within an epoch takes it up again at the next batch, as a longer one would have."""
    assert noted.executed("longer") == list(range(12))
    whole, first, second = (noted.steps("longer", "train", life=life) for life in range(3))
    assert first | second == whole
    assert noted.exits("longer") == [0, 0]


def test_nothing_is_left_outside_the_store(noted: Noted) -> None:
    """With save_strategy "no" the output folder stays empty."""
    assert not list((noted.base / "store/stopped/own").iterdir())
