# SPDX-License-Identifier: Apache-2.0
"""Two ranks under torchrun of which one is told to stop: both save the same step and go on from it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from tests.real.failures_bucket import Place
from tests.real.failures_runs import TRAINER, Runs, Told
from tests.train.rendezvous import rendezvous

pytest_plugins = ["tests.real.failures_fixtures"]
# Each start under torchrun imports torch in two new processes.
pytestmark = [pytest.mark.real, pytest.mark.timeout(120, func_only=True)]

_TORCHRUN = [
    str(Path(torch.__file__).parent / "distributed" / "run.py"),
    *("--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--shutdown-timeout=60"),
    str(TRAINER),
]
_RANKS = range(2)


def _straight(runs: Runs, url: str) -> list[Told]:
    """Return what both ranks say when nothing happens; no launcher is needed for that."""
    common = {"WORLD_SIZE": "2"} | rendezvous()
    both = [runs.start(url, environ=common | {"RANK": str(r), "LOCAL_RANK": str(r)}) for r in _RANKS]
    for trainer in both:
        assert trainer.end() == 0, trainer.text
    return [trainer.told(rank) for rank, trainer in enumerate(both)]


def test_one_rank_is_told(weed_place: Place, runs: Runs, tmp_path: Path) -> None:
    """SIGTERM to the second rank only: both leave at one step, and continue as if nothing had happened."""
    first = runs.start(weed_place.url, "--hold-at", "6", environ=weed_place.environ, program=_TORCHRUN)
    straight = _straight(runs, str(tmp_path / "straight"))
    for rank in _RANKS:
        first.wait_for(f"^rank {rank}: holds 6$")
    (second,) = first.children(b"\0RANK=1\0")
    os.kill(second, signal.SIGTERM)
    runs.go_on(6)
    # torchrun's own status says only that not all ranks ended with 0.
    assert first.end() == 1, first.text
    assert first.text.count("exitcode  : 75") >= 1, first.text
    left = {first.told(rank).left for rank in _RANKS}
    assert len(left) == 1, first.text
    (step,) = left
    assert step is not None
    assert step in (7, 8)
    assert weed_place.latest_step() == step
    again = runs.start(weed_place.url, environ=weed_place.environ, program=_TORCHRUN)
    assert again.end() == 0, again.text
    for rank in _RANKS:
        told = again.told(rank)
        assert told.resumed == step
        assert first.told(rank).losses | told.losses == straight[rank].losses
        assert told.digest == straight[rank].digest
