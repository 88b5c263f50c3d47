# SPDX-License-Identifier: Apache-2.0
"""A Trainer that is stopped and killed, wherever it is, ends as if nothing had happened."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.train.integrations.transformers_rows import PLAIN, Noted, at, run
from tests.train.launching import LAUNCH_SECONDS

pytest.importorskip("transformers", reason="the Trainer of transformers is what is tried here")

pytestmark = pytest.mark.timeout(LAUNCH_SECONDS)

# 22 sentences make 11 batches, so 6 steps an epoch, the last of one batch.
_TWO_EPOCHS = {"num_train_epochs": 2}
_BATCHES, _STEPS = 22, 12


def _cases() -> list[dict[str, Any]]:
    lot = random.Random(20261130)
    first, second = sorted(lot.sample(range(2, _BATCHES - 2), 2))
    noise = {"noise": True}
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
            "name": "epoch",
            "args": _TWO_EPOCHS | {"eval_strategy": "epoch"},
            "lives": [PLAIN, at(11), at(2, within="eval"), at(11), {}],
        },
        {
            "name": "last",
            "args": _TWO_EPOCHS | {"logging_strategy": "epoch"},
            "lives": [PLAIN, at(11), at(11), {}],
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


@pytest.mark.parametrize("case", ["stopped", "epoch", "last"])
def test_lives_that_were_stopped_are_one_training(noted: Noted, case: str) -> None:
    """Losses, data, rates, logs and the end are those of an uninterrupted training; no step is done twice."""
    noted.assert_same(case)
    *stopped, finished = noted.exits(case)
    assert (set(stopped), finished) == ({75}, 0)


def test_a_life_that_was_killed_is_gone_on_from_its_last_save(noted: Noted) -> None:
    """After SIGKILL the steps since the last save are done again, alike to the last bit."""
    noted.assert_same("killed", killed=True)
    assert noted.exits("killed") == [-9, 0]


def test_an_order_within_an_accumulation_waits_for_its_step(noted: Noted) -> None:
    """Every step is executed once, whole: a stop comes after the second batch of an accumulation."""
    assert noted.executed("stopped") == list(range(_STEPS))
    lengths = [len(rows) for life in (1, 2) for rows in noted.steps("stopped", "train", life=life).values()]
    assert set(lengths) <= {1, 2}
    assert lengths.count(1) <= 1, "only the last step of an epoch has one batch"


def test_a_stop_is_no_end_for_the_programs_callbacks(noted: Noted) -> None:
    """A program's own on_train_end is called once in a run, when training has ended."""
    assert [row["life"] for row in noted.all("stopped", "train-end") if row["life"]] == [3]


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


def test_a_durable_stop_is_no_error(noted: Noted) -> None:
    """After a stop the status names its phase and exit code, and no error."""
    status = json.loads((noted.base / "store/stopped/runtime-1/status/run.json").read_text())
    assert (status["phase"], status["exit_code"], status["error"]) == ("durable", 75, "")


def test_nothing_is_left_outside_the_store(noted: Noted) -> None:
    """With save_strategy "no" the output folder stays empty."""
    assert not list((noted.base / "store/stopped/own").iterdir())
