# SPDX-License-Identifier: Apache-2.0
"""Runs of Accelerate in two processes, one of which is told: DDP, FSDP2, and another number of processes."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.train.integrations.accelerate_lives import Lived, live_all

for needed in ("torch", "accelerate"):
    pytest.importorskip(needed, reason=f"needs {needed}")
pytestmark = pytest.mark.timeout(600)

TERM = int(signal.SIGTERM)
SEEDABLE = {"use_seedable_sampler": True}
STOPPED: dict[str, dict[str, Any]] = {
    "accumulation": {
        "accumulation": 3,
        "evaluate_every": 2,
        "at": ["train:0:1", "evaluate:4:1", "train:2:1"],
    },
    "evaluation in the middle of an epoch": {
        "evaluate_every": 2,
        "evaluations": 2,
        "at": ["evaluate:2:1", "evaluate:8:4"],
    },
    "dispatched": {
        "loader": {"dispatch_batches": True},
        "length": 37,
        "evaluate_every": 0,
        "at": ["train:0:2", "train:1:1"],
    },
    "split": {
        "loader": {"split_batches": True, "dispatch_batches": True},
        "length": 40,
        "evaluate_every": 0,
        "at": ["train:0:9"],
    },
    "stream": {
        "data": "stream",
        "loader": {"dispatch_batches": False},
        "evaluate_every": 0,
        "at": ["train:1:2"],
    },
    "dispatched stream": {"data": "stream", "length": 37, "evaluate_every": 0, "at": ["train:1:1"]},
    "FSDP2": {"fsdp": True, "evaluate_every": 0, "at": ["train:0:2"]},
    "accumulation by hand": {"by_hand": 2, "evaluate_every": 0, "at": ["train:0:1"]},
    "accumulation by hand, FSDP2": {"by_hand": 2, "fsdp": True, "evaluate_every": 0, "at": ["train:0:1"]},
}
RESIZED: dict[str, tuple[int, int, dict[str, Any]]] = {
    "two to one": (2, 1, {}),
    "one to two": (1, 2, {}),
    "two to one, FSDP2": (2, 1, {"fsdp": True}),
    "one to two, FSDP2": (1, 2, {"fsdp": True}),
    "two to one, a stream": (2, 1, {"data": "told"}),
    "two to one, a stream for each": (2, 1, {"data": "told", "loader": {"dispatch_batches": False}}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Lived]:
    """Return all runs, lived once for all tests."""
    cases: list[dict[str, Any]] = []
    for name, case in STOPPED.items():
        lives = [{"at": at, "signal": TERM, "rank": 1} for at in case["at"]]
        cases.append({"name": f"{name}, straight", "ranks": 2, "lives": [{}], **case})
        cases.append({"name": name, "ranks": 2, "lives": [*lives, {}], **case})
    for name, (before, after, options) in RESIZED.items():
        lives = [{"at": "train:0:1", "signal": TERM, "ranks": before}, {"ranks": after}]
        resized = {"loader": SEEDABLE, "chance": False, "evaluate_every": 0, **options}
        cases.append({"name": name, "lives": lives, **resized})
    return live_all(tmp_path_factory.mktemp("accelerate"), cases)


@pytest.mark.parametrize("name", STOPPED)
def test_a_signal_to_one_process_stops_both_at_one_step(runs: dict[str, Lived], name: str) -> None:
    """Both save the same step and go on as if never stopped, with nothing done twice."""
    stops = len(STOPPED[name]["at"])
    assert runs[f"{name}, straight"].codes == [[0, 0]]
    assert runs[name].codes == [[75, 75]] * stops + [[0, 0]]
    for rank in range(2):
        assert runs[name].rows(rank) == runs[f"{name}, straight"].rows(rank)
        assert set(runs[name].sharded(rank)) == {"fsdp" in STOPPED[name]}
    assert runs[name].begins(0) == runs[name].begins(1)


@pytest.mark.parametrize("name", RESIZED)
def test_another_number_of_processes_takes_up_the_epoch(runs: dict[str, Lived], name: str) -> None:
    """With an order that does not depend on their number, every sample of the epoch is taken once."""
    before, after, options = RESIZED[name]
    assert runs[name].codes == [[75] * before, [0] * after]
    assert runs[name].sharded() == ["fsdp" in options and count > 1 for count in (before, after)]
    first = [runs[name].lives(rank)[0] for rank in range(before)]
    assert 2 <= len(first[0]) <= 3  # ranks may agree at the end of the next step
    ranks = [runs[name].losses(rank) for rank in range(max(before, after))]
    # 38 samples make ten batches; two processes have five each.
    assert sum(1 for rows in ranks for row in rows if row["epoch"] == 0) == 10
