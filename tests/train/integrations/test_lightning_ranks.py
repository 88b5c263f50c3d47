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
from .lives import lives

pytestmark = pytest.mark.timeout(400)
DDP: dict[str, Any] = {"trainer": {"strategy": "ddp", "devices": 2}, "samples": 48}
SHARDED: dict[str, Any] = {"trainer": {"devices": 2}, "samples": 48, "sharded": True}
HOOKS: dict[str, Any] = {**DDP, "hooks": True, "ema": True}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Return a server of lives."""
    with serving() as made:
        yield made


@pytest.mark.parametrize(
    ("case", "tells"),
    [
        (DDP, [("step", 4, 1), ("validation", 6, 1), ("batch", 12, 0)]),
        (HOOKS, [("step", 4, 1), ("validation", 12, 0)]),
        (SHARDED, [("step", 4, 1), ("validation", 12, 1)]),
    ],
    ids=["ddp", "ddp with hooks and averaged weights", "FSDP2"],
)
def test_a_signal_to_one_rank_stops_both_at_one_step(
    server: Server, tmp_path: Path, case: dict[str, Any], tells: list[tuple[str, int, int]]
) -> None:
    """In steps and in evaluations; after all of it, each rank has done what it does undisturbed."""
    whole = Run(server, tmp_path / "whole", case, ranks=2)
    whole.live(0)
    run = Run(server, tmp_path / "run", case, ranks=2)
    for place, step, rank in tells:
        run.live(75, tell={"in": place, "step": step, "how": "term", "rank": rank})
    run.live(0)
    for rank in range(2):
        assert run.rows(rank) == whole.rows(rank)


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
