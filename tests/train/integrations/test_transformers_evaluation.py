# SPDX-License-Identifier: Apache-2.0
"""A Trainer that is stopped inside an evaluation leaves it, and does it first in its next life."""

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


def _cases() -> list[dict[str, Any]]:
    lot = random.Random(20261130)
    noise = {"noise": True}
    evaluating = _TWO_EPOCHS | _EVALUATES
    return [
        {
            "name": "evaluating",
            "args": evaluating,
            "data": noise,
            "lives": [
                PLAIN,
                at(lot.randrange(1, 3), within="eval"),
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
    ]


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> Noted:
    """Live all cases once."""
    return run(tmp_path_factory.mktemp("transformers"), _cases())


@pytest.mark.parametrize("case", ["evaluating", "first", "best", "plateau"])
def test_lives_that_were_stopped_are_one_training(noted: Noted, case: str) -> None:
    """Losses, data, rates, logs and the end are those of an uninterrupted training; no step is done twice."""
    noted.assert_same(case)
    *stopped, finished = noted.exits(case)
    assert (set(stopped), finished) == ({75}, 0)


def test_a_save_within_an_evaluation_is_gone_on_from(noted: Noted) -> None:
    """After SIGKILL the evaluation that a flush came in is done again, and the steps since, alike."""
    noted.assert_same("flushed", killed=True)
    assert noted.exits("flushed") == [-9, 0]


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
