# SPDX-License-Identifier: Apache-2.0
"""Lightning on two processes: a signal to one, and both leave at one step, and go on together."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning", reason="Lightning is not installed")
pytest.importorskip("torchdata", reason="torchdata is not installed")

from .lightning_lives import ROOT, Run, Server, serving
from .lightning_rows import ESTIMATED
from .lives import lives

pytestmark = pytest.mark.timeout(400)
DDP: dict[str, Any] = {"trainer": {"strategy": "ddp", "devices": 2}, "samples": 48}
SHARDED: dict[str, Any] = {"trainer": {"devices": 2}, "samples": 48, "sharded": True}
HOOKS: dict[str, Any] = {**DDP, **ESTIMATED, "hooks": True, "ema": True}
# Six batches a rank and epoch: evaluations come after the third, between two whose gradients are added up.
BETWEEN: dict[str, Any] = {"accumulate_grad_batches": 2, "val_check_interval": 0.5, "max_epochs": 2}


def between(case: dict[str, Any]) -> dict[str, Any]:
    """Return the case with evaluations between accumulated batches."""
    return {**case, "trainer": {**case["trainer"], **BETWEEN}}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Return a server of lives."""
    with serving() as made:
        yield made


@pytest.mark.parametrize(
    ("case", "tells"),
    [
        (DDP, [("step", 4, 1), ("validation", 6, 1), ("batch", 12, 0)]),
        (HOOKS, [("step", 2, 1), ("validation", 12, 0)]),
        ({**DDP, "manual": True}, [("validation", 6, 1)]),
        (between({**DDP, "loader": "held weighted"}), [("validation", 1, 0), ("batch", 3, 1)]),
        (SHARDED, [("step", 4, 1), ("validation", 12, 1)]),
        (between(SHARDED), [("validation", 1, 0), ("validation", 4, 1)]),
    ],
    ids=[
        "ddp",
        "ddp with hooks, averaged weights and steps estimated",
        "ddp by hand",
        "ddp between accumulated batches, with a generator within the sampler that Lightning wraps",
        "FSDP2",
        "FSDP2 between accumulated batches",
    ],
)
def test_a_signal_to_one_rank_stops_both_at_one_step(
    server: Server, tmp_path: Path, case: dict[str, Any], tells: list[tuple[str, int, int]]
) -> None:
    """In steps and in evaluations; after all of it, each rank has done what it does undisturbed."""
    whole = Run(server, tmp_path / "whole", case, ranks=2)
    whole.live(0)
    run = Run(server, tmp_path / "run", case, ranks=2)
    for place, step, rank in tells:
        text = run.live(75, tell={"in": place, "step": step, "how": "term", "rank": rank})
        assert "it is finished first" not in text
    run.live(0)
    for rank in range(2):
        assert run.rows(rank) == whole.rows(rank)


def test_weights_that_a_callback_puts_in_for_an_evaluation_are_never_saved_as_the_models(
    server: Server, tmp_path: Path
) -> None:
    """Only the callback knows where the model's own are meanwhile: the evaluation is finished first."""
    case = {**DDP, "swaps": True}
    whole = Run(server, tmp_path / "whole", case, ranks=2)
    whole.live(0)
    run = Run(server, tmp_path / "run", case, ranks=2)
    text = run.live(75, tell={"in": "validation", "step": 6, "how": "term", "rank": 1})
    assert text.count("it is finished first") == 2
    run.live(0)
    for rank in range(2):
        assert run.rows(rank) == whole.rows(rank)


def test_ranks_whose_evaluations_may_differ_in_length_do_not_wait_for_each_other(
    server: Server, tmp_path: Path
) -> None:
    """Streams do not say how long they are: what has begun is finished, and the stop comes after it."""
    case = {**DDP, "uneven": True, "trainer": {**DDP["trainer"], "limit_val_batches": 1.0}, "after": ["test"]}
    whole = Run(server, tmp_path / "whole", case, ranks=2)
    whole.live(0)
    run = Run(server, tmp_path / "run", case, ranks=2)
    run.live(75, tell={"in": "validation", "step": 6, "how": "term", "rank": 1})
    run.live(0, tell={"in": "test", "step": 18, "how": "term", "rank": 1})
    for rank, batches in enumerate((2, 5)):
        assert run.rows(rank) == whole.rows(rank)
        assert len([row for row in run.rows(rank) if "tested" in row]) == batches


def test_workers_of_evaluations_draw_no_seed_again_after_a_life_without_an_evaluation(
    server: Server, tmp_path: Path
) -> None:
    """That they lived on is known from the life before that; what they themselves draw is lost."""
    case = {"lasting": True}
    whole = Run(server, tmp_path / "whole", case)
    whole.live(0)
    run = Run(server, tmp_path / "run", case)
    for step in (8, 10):
        run.live(75, tell={"in": "step", "step": step, "how": "term"})
    run.live(0)
    assert [row for row in run.rows() if "had" in row] == [row for row in whole.rows() if "had" in row]


def test_a_signal_to_one_rank_breaks_off_what_trains_nothing_on_both(server: Server, tmp_path: Path) -> None:
    """After the same batch of a test, a prediction and a validation after training, whose work is durable."""
    trainer = {**DDP["trainer"], "max_epochs": 1}
    case = {**DDP, "trainer": trainer, "unchecked": True, "after": ["test", "predict", "validate"]}
    run = Run(server, tmp_path / "run", case, ranks=2)
    for place in ("test", "prediction", "validation"):
        text = run.live(75, tell={"in": place, "step": 6, "how": "term", "rank": 1})
        assert text.count("is broken off") == 2
    run.live(0)
    for rank in range(2):
        rows = run.rows(rank)
        assert [row["step"] for row in rows if "step" in row] == list(range(1, 7))
        assert [row["tested"] for row in rows if "tested" in row] == [0, 1] * 4
        assert [row["predicted"] for row in rows if "predicted" in row] == [0, 1] * 3
        assert len([row for row in rows if "evaluated" in row]) == 1


def test_a_machine_that_is_taken_away_costs_what_was_done_after_the_last_save(
    server: Server, tmp_path: Path
) -> None:
    """SIGKILL to all ranks: what comes after the save is done again, the same."""
    whole = Run(server, tmp_path / "whole", DDP, ranks=2)
    whole.live(0)
    run = Run(server, tmp_path / "run", {**DDP, "ck": {"every_seconds": None, "every_steps": 4}}, ranks=2)
    run.begin(tell={"in": "step", "step": 10, "how": "kill", "rank": 1})
    run.wait_for_death(1)
    run.kill()
    run.live(0)
    for rank in range(2):
        rows, reference = run.rows(rank), whole.rows(rank)
        again = next(n for n, row in enumerate(reference) if row.get("step") == 9)
        assert rows[-len(reference[again:]) :] == reference[again:]


def test_lightning_may_start_the_other_process_itself(tmp_path: Path) -> None:
    """Without a launcher, and with SIGTERM to the first process alone."""
    with lives(tmp_path / "run", "lightning_alone_run.py") as run:
        process = run.start("waits", PYTHONPATH=str(ROOT))
        run.wait(process, lambda: len(run.rows(waits=True)) == 2)
        os.kill(process.pid, signal.SIGTERM)
        run.end(process, 75)
        left_at = {len(run.rows(rank=rank)) for rank in range(2)}
        assert len(left_at) == 1
        run.run(0, PYTHONPATH=str(ROOT))
        for rank in range(2):
            assert [row["step"] for row in run.rows(rank=rank)] == list(range(8))
