# SPDX-License-Identifier: Apache-2.0
"""The Slurm recipe where an earlier start of the job was killed on the node, and what it wants requeued.

`srun` and the trainer are played by a few lines of shell; the real Slurm is in tests/real.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "examples" / "recipes" / "slurm.sbatch"
JOB = "4711"
# As slurmd: the task is a session of its own, and all of it is killed when the trainer has asked for that.
SRUN = """#!/bin/bash
shift
SLURM_NODEID=${NODEID:-0} setsid --wait "$@"
"""
SCONTROL = """#!/bin/bash
echo "$@" >> asked
"""
TRAINER = """echo "$SPOTWATCH_STATE_DIR $ATTEMPT"
mkdir "$SPOTWATCH_RUNTIME_DIR" "$SPOTWATCH_STATE_DIR" && touch "$SPOTWATCH_STATE_DIR/journal"
test -z "$KILLED" || kill -KILL 0
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Give a folder with the recipe, a played `srun` and trainer, and an empty `tmp`."""
    shutil.copy(SCRIPT, tmp_path)
    (tmp_path / "torchrun-node.sh").write_text(TRAINER, encoding="utf-8")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text(SRUN, encoding="utf-8")
    (tmp_path / "bin" / "srun").chmod(0o755)
    (tmp_path / "bin" / "scontrol").write_text(SCONTROL, encoding="utf-8")
    (tmp_path / "bin" / "scontrol").chmod(0o755)
    return tmp_path


def start(cluster: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the batch script once, as Slurm does for each start of the job."""
    environment = {
        "PATH": f"{cluster / 'bin'}:{os.environ['PATH']}",
        "TMPDIR": str(cluster / "tmp"),
        "SLURM_JOB_ID": JOB,
        "SLURM_NNODES": "1",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        **variables,
    }
    return subprocess.run(
        ["bash", "slurm.sbatch", "train.py"],
        cwd=cluster,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_job_that_was_killed_starts_again_on_the_same_node(cluster: Path) -> None:
    """A requeued job keeps its number: what its killed start left neither stops it nor stays."""
    killed = start(cluster, KILLED="yes")
    assert killed.returncode == 128 + signal.SIGKILL, killed.stderr
    (left,) = (cluster / "tmp").iterdir()
    assert (left / "state" / "journal").exists()
    again = start(cluster, SLURM_RESTART_COUNT="1")
    assert again.returncode == 0, again.stderr
    assert again.stdout.split()[1] == f"{JOB}.1" != killed.stdout.split()[1]
    assert not list((cluster / "tmp").iterdir())


def test_only_folders_of_earlier_starts_are_removed(cluster: Path) -> None:
    """Another job's folder, a link, a file, and another node of this start on the same machine are let be."""
    kept = cluster / "kept"
    kept.mkdir()
    tmp = cluster / "tmp"
    for name in (f"spotwatch-{JOB}1-0-0.aaaaaa", f"spotwatch-{JOB}-1-1.bbbbbb"):
        (tmp / name).mkdir()
    (tmp / f"spotwatch-{JOB}-0-0.cccccc").symlink_to(kept)
    (tmp / f"spotwatch-{JOB}-0-0.dddddd").write_text("", encoding="utf-8")
    (tmp / f"spotwatch-{JOB}-0-0.eeeeee").mkdir()
    before = {path.name for path in tmp.iterdir()}
    assert start(cluster, SLURM_RESTART_COUNT="1").returncode == 0
    assert before - {path.name for path in tmp.iterdir()} == {f"spotwatch-{JOB}-0-0.eeeeee"}
    assert kept.is_dir()


def test_name_that_somebody_else_took_does_no_harm(cluster: Path) -> None:
    """The folder is a new one, of our own alone, whatever stands in /tmp before."""
    for node in ("0", "0-0", "0-0.XXXXXX"):
        (cluster / "tmp" / f"spotwatch-{JOB}-{node}").mkdir(mode=0o777)
    killed = start(cluster, KILLED="yes")
    base = Path(killed.stdout.split()[0]).parent
    assert base.stat().st_uid == os.geteuid()
    assert stat.S_IMODE(base.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("status", "array", "requeued"),
    [
        ("75", {}, JOB),
        ("76", {}, JOB),
        ("75", {"SLURM_ARRAY_JOB_ID": JOB, "SLURM_ARRAY_TASK_ID": "3"}, f"{JOB}_3"),
        ("75", {"SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "0"}, "4700_0"),
        ("0", {}, ""),
        ("77", {}, ""),
        ("143", {}, ""),
    ],
)
def test_what_is_requeued(cluster: Path, status: str, array: dict[str, str], requeued: str) -> None:
    """A stop is, of an array the one task; an end, a lost lease and a signal to the trainer alone are not."""
    (cluster / "torchrun-node.sh").write_text(f"exit {status}\n", encoding="utf-8")
    assert start(cluster, **array).returncode == int(status)
    assert asked(cluster) == ([f"requeue {requeued}"] if requeued else [])


def test_told_before_the_trainer_could_hear(cluster: Path) -> None:
    """A signal to the whole step that ends what was starting is a stop without a save, and is requeued."""
    (cluster / "torchrun-node.sh").write_text("kill -TERM $PPID $$\n", encoding="utf-8")
    assert start(cluster).returncode == 76
    assert asked(cluster) == [f"requeue {JOB}"]


def asked(cluster: Path) -> list[str]:
    """Return what `scontrol` was asked for."""
    path = cluster / "asked"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
