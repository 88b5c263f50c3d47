# SPDX-License-Identifier: Apache-2.0
"""A program on a mesh of four ranks is told, stopped and killed on one of them, and goes on as if not."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from spotwatch.handshake import FLAG
from spotwatch.train.registry.registry import Registry
from spotwatch.train.stores.directory import DirectoryStore
from tests.train.conftest import Daemon
from tests.train.integrations.lives import Lives, lives
from tests.train.launching import LAUNCH_SECONDS

pytest.importorskip("torch", reason="meshes are torch's")

_ROOT = Path(__file__).parents[2]
_WORKER = str(Path(__file__).parent / "workers" / "mesh_train.py")
_FOR_EVER = "1000000"


def losses(run: Lives) -> dict[tuple[int, int], list[str]]:
    """Return the losses that each rank has noted for each step, in order."""
    found: dict[tuple[int, int], list[str]] = {}
    for row in run.rows():
        if "loss" in row:
            found.setdefault((row["rank"], row["step"]), []).append(row["loss"])
    return found


def pid_of(run: Lives, rank: int) -> int:
    """Return the process of a rank in the life that goes on."""
    pid: int = [row["pid"] for row in run.rows(rank=rank) if "pid" in row][-1]
    return pid


def saved(run: Lives) -> tuple[str, int]:
    """Return which checkpoint LATEST names, and its step."""
    latest = Registry(DirectoryStore(run.base / "store" / "run"), "run").latest()
    assert latest is not None
    return latest.dir, latest.step


def newest(run: Lives) -> int:
    """Return the highest step that a save was begun of."""
    return max(int(path.name.split("-")[1]) for path in (run.base / "store" / "run").glob("step-*"))


def steps_after(run: Lives, count: int) -> Any:
    """Return what tells that all ranks have taken so many more steps."""
    wanted = len(run.rows()) + 4 * count
    return lambda: len(run.rows()) >= wanted


@pytest.mark.timeout(600)
def test_told_stopped_and_killed_on_one_rank(tmp_path: Path) -> None:
    """A flag on one rank saves; SIGTERM to one ends all; one killed in a save leaves LATEST as it was."""
    chance = random.Random(6)
    with lives(tmp_path / "run", _WORKER, "2x2", ranks=4) as run:
        first = run.start(_FOR_EVER, _FOR_EVER, "0", PYTHONPATH=str(_ROOT))
        run.wait(first, steps_after(run, chance.randrange(2, 8)))
        machine = run.daemon.runtime_dir / "3"
        assert Daemon(machine).flag(5)
        run.wait(first, lambda: not (machine / FLAG).exists())
        _, flushed = saved(run)
        run.wait(first, steps_after(run, chance.randrange(2, 8)))
        os.kill(pid_of(run, 2), signal.SIGTERM)
        run.end(first, 75)
        (stopped,) = {row["left"] for row in run.rows(status=75)}
        latest = saved(run)
        assert latest[1] == stopped > flushed > 0
        told = losses(run)

        # At 1000 bytes a second the first save goes at once, and the second waits for many seconds.
        second = run.start(_FOR_EVER, "3", "1000", PYTHONPATH=str(_ROOT))
        run.wait(second, lambda: saved(run)[1] > stopped)
        latest = saved(run)
        run.wait(second, lambda: newest(run) > latest[1])
        os.kill(pid_of(run, 1), signal.SIGKILL)
        second.communicate(timeout=LAUNCH_SECONDS)
        assert second.returncode != 0
        assert saved(run) == latest

        total = latest[1] + 5
        run.run(0, str(total), _FOR_EVER, "0", PYTHONPATH=str(_ROOT))
        done = losses(run)
    # No step was executed twice after the stop; after the kill, those since LATEST.
    assert all(len(some) == 1 for (_, step), some in done.items() if step <= latest[1])
    assert {(rank, step) for rank, step in done if step <= stopped} == set(told)
    with lives(tmp_path / "whole", _WORKER, "2x2", ranks=4) as whole:
        whole.run(0, str(total), _FOR_EVER, "0", PYTHONPATH=str(_ROOT))
        wanted = losses(whole)
    assert {where: some[-1] for where, some in done.items() if where in wanted} == {
        where: one for where, (one,) in wanted.items()
    }
    assert all(one in wanted[where] for where, some in done.items() if where in wanted for one in some)
