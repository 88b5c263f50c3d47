# SPDX-License-Identifier: Apache-2.0
"""The shipped script on a real Slurm: preempted, a node reclaimed, at its time limit; no step is lost.

The cluster costs about five seconds, each start of a job about ten: torchrun and every rank import torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spotwatch.train.registry.registry import Registry
from spotwatch.train.stores.directory import DirectoryStore
from tests.real.conftest import _require
from tests.real.slurm import TOOLS, Cluster, cluster, until
from tests.train.launching import clean_environ

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Give a cluster of two nodes; two to five seconds."""
    _require(*TOOLS)
    with cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@dataclass(frozen=True)
class Job:
    """The shipped script, submitted."""

    slurm: Cluster
    base: Path
    number: str

    def executed(self) -> list[tuple[int, int]]:
        """Return the steps in the order of their execution, each with its rank."""
        trace = self.base / "trace"
        rows = [row.split() for row in trace.read_text().splitlines()] if trace.exists() else []
        return [(int(step), int(rank)) for step, rank, _ in rows]

    def trains(self, beyond: int) -> None:
        """Wait until it has executed twenty steps more than it had."""
        until(lambda: any(step > beyond + 20 for step, _ in self.executed()), f"training\n{self.output()}")

    def saved_step(self) -> int:
        """Return the step that LATEST names."""
        latest = Registry(DirectoryStore(self.base / "store" / "run"), "run").latest()
        return latest.step if latest else 0

    def output(self) -> str:
        """Return what all its starts have printed."""
        out = self.base / "out"
        return out.read_text() if out.exists() else ""

    def requeued(self, times: int) -> int:
        """Wait until it has been requeued so often, and return the step it saved, which was its last."""
        self.slurm.wait_for(self.number, JobState="PENDING", Restarts=str(times))
        step = self.saved_step()
        assert step == max(step for step, _ in self.executed()), self.output()
        return step


def submit(slurm: Cluster, base: Path, nodes: int, *, total_steps: int, limit: str) -> Job:
    """Submit the shipped script as its page says, with a trainer of one rank a node."""
    environ = clean_environ() | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TMPDIR": str(base),
        "RANKS": "1",
        "SPOTWATCH_PROVIDERS": "file",
        "SPOTWATCH_POLICY__DRAIN_SECONDS": "0",
    }
    number = slurm.sbatch(
        *("--nodes", str(nodes), "--time", limit, "--output", str(base / "out")),
        *("slurm.sbatch", "train_ranks.py", "--url", str(base / "store"), "--run-id", "run"),
        *("--total-steps", str(total_steps), "--step-seconds", "0.02", "--trace", str(base / "trace")),
        cwd=RECIPES,
        environ=environ,
    )
    return Job(slurm, base, number)


def test_preempted(slurm: Cluster, tmp_path: Path) -> None:
    """A higher partition takes the node: saved within the grace, requeued, and finished, each step once."""
    job = submit(slurm, tmp_path, 1, total_steps=250, limit="10")
    job.trains(0)
    nodes = job.slurm.job(job.number)["NodeList"]
    other = "spot2" if nodes == "spot1" else "spot1"
    urgent = ("--partition=urgent", "--nodes=1", f"--exclude={other}", "--output=/dev/null", "--wrap=true")
    taking = slurm.sbatch(*urgent, cwd=tmp_path, environ={})
    step = job.requeued(1)
    assert 0 < step < 250
    slurm.wait_for(taking, JobState="COMPLETED")
    slurm.start_again(job.number)
    slurm.wait_for(job.number, JobState="COMPLETED")
    assert [step for step, _ in job.executed()] == list(range(1, 251))
    assert f"goes on from step {step} " in job.output()
    assert not list(tmp_path.glob("spotwatch-*"))


def test_noticed_then_at_the_time_limit_then_cancelled(slurm: Cluster, tmp_path: Path) -> None:
    """Two nodes: a reclaim of one stops both at one step, so does the time limit; scancel is the end."""
    job = submit(slurm, tmp_path, 2, total_steps=100_000, limit="10")
    job.trains(0)
    (base,) = tmp_path.glob(f"spotwatch-{job.number}-0-1.*")
    runtime = base / "run"
    subprocess.run(
        [sys.executable, "-m", "spotwatch", "trigger", "stop", "--why", "reclaim"],
        env=os.environ | {"SPOTWATCH_RUNTIME_DIR": str(runtime)},
        check=True,
        capture_output=True,
        timeout=30,
    )
    noticed = job.requeued(1)
    assert "Exited with exit code 75" in job.output()
    slurm.start_again(job.number)
    job.trains(noticed)
    # The script asks for its signal 300 s before the limit, so that it comes at once; limits are minutes.
    hours, minutes, _ = slurm.job(job.number)["RunTime"].split(":")
    limit_minutes = int(hours) * 60 + int(minutes) + 2
    slurm.scontrol("update", f"JobId={job.number}", f"TimeLimit={limit_minutes}")
    limit = job.requeued(2)
    assert f"goes on from step {noticed} " in job.output()
    slurm.scontrol("update", f"JobId={job.number}", "TimeLimit=60")
    slurm.start_again(job.number)
    job.trains(limit)
    slurm.run("scancel", job.number)
    cancelled = slurm.wait_for(job.number, JobState="CANCELLED")
    assert cancelled["Restarts"] == "2"
    until(lambda: job.saved_step() > limit, f"a save at the end\n{job.output()}")
    left = max(step for step, _ in job.executed())
    assert job.saved_step() == left
    assert sorted(job.executed()) == [(step, rank) for step in range(1, left + 1) for rank in (0, 1)]
