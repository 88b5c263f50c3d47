# SPDX-License-Identifier: Apache-2.0
"""Runs of Accelerate that are stopped and killed at random places, and the loaders that go on exactly."""

from __future__ import annotations

import random
import signal
from typing import Any

import pytest

from tests.train.integrations.accelerate_lives import Lived, live_all

for needed in ("torch", "accelerate", "torchdata"):
    pytest.importorskip(needed, reason=f"needs {needed}")
pytestmark = pytest.mark.timeout(600)

_chance = random.Random(6)
BATCHES = 10
TERM = int(signal.SIGTERM)


def stop(at: str, **more: Any) -> dict[str, Any]:
    """Return the plan of a life that is told to stop there."""
    return {"at": at, "signal": TERM, **more}


def somewhere(epoch: int) -> dict[str, Any]:
    """Return the plan of a life that is told to stop at a random batch."""
    return stop(f"train:{epoch}:{_chance.randrange(1, BATCHES - 1)}")


LIKE: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulates": {"accumulation": 3, "evaluate_every": 4},
    "evaluates between": {"evaluate_every": 3, "evaluations": 2},
}
LOADERS: dict[str, dict[str, Any]] = {
    "generator": {"data": "generator"},
    "seedable": {"loader": {"use_seedable_sampler": True}},
    "weighted": {"data": "weighted"},
    "dispatched": {"loader": {"dispatch_batches": True}},
    "workers": {"workers": 2, "chance": False},
    "persistent workers": {"workers": 1, "persistent": True, "chance": False},
    "evaluated by persistent workers": {
        "evaluation_persists": True,
        "evaluate_every": 4,
        "lives": [stop("train:1:4")],
    },
    "workers with chance, read again": {"workers": 2, "rereads": True},
    "stateful": {"loader": {"use_stateful_dataloader": True}},
    "stateful with workers": {"loader": {"use_stateful_dataloader": True}, "workers": 2, "chance": False},
    "stream": {"data": "stream"},
    "stream that knows where it is": {"data": "keeping", "loader": {"use_stateful_dataloader": True}},
}
NOT_EXACT: dict[str, dict[str, Any]] = {
    "workers with chance": {"workers": 2},
    "stateful workers with chance": {"loader": {"use_stateful_dataloader": True}, "workers": 2},
}
TOLD: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "training": ("plain", [somewhere(0), somewhere(1), {}]),
    "first and last batch": ("plain", [stop("train:0:0"), stop("train:0:8"), {}]),
    "evaluation": ("plain", [stop("evaluate:10:2"), stop("evaluate:30:0"), {}]),
    "accumulation": (
        "accumulates",
        [stop("train:0:3"), stop("evaluate:8:3"), stop("train:2:7"), {}],
    ),
    "just before an evaluation": ("accumulates", [stop("train:0:9"), stop("train:1:9"), {}]),
    "evaluation in the middle of an epoch": (
        "evaluates between",
        [stop("evaluate:3:1"), stop("evaluate:15:0"), stop("evaluate:18:7"), {}],
    ),
    "order": ("plain", [{"at": "train:0:5", "order": "stop"}, {}]),
    "order in evaluation": ("accumulates", [{"at": "evaluate:4:1", "order": "stop"}, {}]),
    "without exits": ("plain", [stop("train:1:2"), stop("evaluate:20:1"), {}]),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Lived]:
    """Return all runs of one process each, lived once for all tests."""
    cases: list[dict[str, Any]] = [
        {"name": "killed", "lives": [{**somewhere(1), "signal": int(signal.SIGKILL)}, {}], "every_steps": 7},
    ]
    cases += [{"name": name, "lives": [{}], **options} for name, options in LIKE.items()]
    for name, (like, lives) in TOLD.items():
        cases.append({"name": name, "lives": lives, "exits": name != "without exits", **LIKE[like]})
    for name, options in (LOADERS | NOT_EXACT).items():
        # Without evaluations, which say nothing of the loader.
        case = {"evaluate_every": 0, **options}
        lives = options.get("lives", [somewhere(0)])
        cases.append({**case, "name": f"{name}, straight", "lives": [{}]})
        cases.append({**case, "name": name, "lives": [*lives, {"seed": 7}]})
    return live_all(tmp_path_factory.mktemp("accelerate"), cases)


@pytest.mark.parametrize("name", TOLD)
def test_a_run_that_was_told_to_stop_goes_on_as_if_it_never_was(runs: dict[str, Lived], name: str) -> None:
    """Losses, rates, evaluations and chance are those of the uninterrupted run, and nothing is done twice."""
    like, lives = TOLD[name]
    assert runs[like].codes == [[0]]
    assert runs[name].codes == [[75]] * (len(lives) - 1) + [[0]]
    assert runs[name].rows() == runs[like].rows()


def test_a_stop_within_accumulation_waits_for_the_step(runs: dict[str, Lived]) -> None:
    """The batches of a step are of one life: none is saved with half of its gradients."""
    straight, stopped = runs["accumulates"], runs["accumulation"]
    ends = [number for number, row in enumerate(straight.losses(), 1) if row["is_step"]]
    taken = [len(rows) for rows in stopped.lives()]
    assert stopped.begins() == [0, 2, 8, 11]
    assert [sum(taken[: life + 1]) for life in range(3)] == [ends[step - 1] for step in (2, 8, 11)]


def test_a_run_that_was_killed_goes_on_from_its_last_save(runs: dict[str, Lived]) -> None:
    """What is done again comes out the same, and it is what was done since the last save."""
    straight, killed = runs["plain"].rows(), runs["killed"]
    steps, rows = runs["plain"].losses(), killed.losses()
    (_, begin) = killed.begins()
    again = len(rows) - len(steps)
    assert killed.codes == [[-signal.SIGKILL], [0]]
    assert begin > 0
    assert begin % 7 == 0
    assert rows[:begin] + rows[begin + again :] == steps
    assert 0 <= again < 2 * 7  # a save may have been on its way
    assert killed.rows()[-1] == straight[-1]


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_goes_on_in_the_middle_of_an_epoch(runs: dict[str, Lived], name: str) -> None:
    """Order and transformations are those of the uninterrupted run, whatever seed the second life has."""
    assert runs[name].codes == [[75], [0]]
    assert runs[name].rows() == runs[f"{name}, straight"].rows()


@pytest.mark.parametrize("name", NOT_EXACT)
def test_chance_in_workers_differs_unless_read_again(runs: dict[str, Lived], name: str) -> None:
    """Workers begin their chance anew: all else is the same, the random transformations are not."""
    rows, straight = runs[name].rows(), runs[f"{name}, straight"].rows()
    assert runs[name].codes == [[75], [0]]
    assert rows != straight
    assert [row.get("luck") for row in rows] == [row.get("luck") for row in straight]
    assert [row.get("seen") for row in rows] == [row.get("seen") for row in straight]
