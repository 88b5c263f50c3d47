# SPDX-License-Identifier: Apache-2.0
"""Whole programs under torchrun, DDP and FSDP2: told on one rank, saved by all, resumed by any number."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spotwatch.handshake import FLAG, Status
from spotwatch.train.registry.manifest import Manifest
from spotwatch.train.registry.registry import Registry
from spotwatch.train.stores.directory import DirectoryStore
from tests.train.conftest import Daemon
from tests.train.launching import LAUNCH_SECONDS, WORKERS, clean_environ, ranks
from tests.train.workers.torchrun_train import EVERY_STEPS

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(400)

_SCRIPT = WORKERS / "torchrun_train.py"
_GOES_ON = 7


@dataclass(frozen=True)
class Stopped:
    """A run of two ranks that was stopped."""

    base: Path
    told: list[dict[str, Any]]
    """What each rank said at its end."""
    flushed_at: int
    """The step that was saved because of the flag."""
    has_flag: bool
    """Whether the flag was still there at the end."""

    @property
    def left(self) -> int:
        """Return the step at which it ended."""
        left: int = self.told[0]["left"]
        return left

    def registry(self) -> Registry:
        """Return its checkpoints."""
        return Registry(DirectoryStore(self.base / "store" / "run"), "run")

    def manifests(self) -> list[Manifest]:
        """Return those that are complete."""
        registry = self.registry()
        return [registry.manifest(found.dir) for found in registry.checkpoints() if found.is_complete]

    def go_on(self, kind: str, count: int) -> list[dict[str, Any]]:
        """Go on with a copy of it for a few steps, by so many ranks."""
        copy = self.base / f"{kind}{count}"
        shutil.copytree(self.base / "store", copy / "store")
        total = self.left + _GOES_ON
        where = (copy / "store", copy / "runtime", kind, total)
        return ranks(count, "torchrun_train.py", copy / "out", *where)


def wait(wanted: Callable[[], Any], process: subprocess.Popen[str]) -> Any:
    """Return what `wanted` returns, once that is something; the process must live until then."""
    until = time.monotonic() + LAUNCH_SECONDS
    while time.monotonic() < until:
        if result := wanted():
            return result
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    raise AssertionError("not in time")


def status(machine: Path, *, step: int = 1, seq: int = 0) -> Status | None:
    """Return what a rank says, once it has taken so many steps and has answered an order by a save."""
    if not (machine / "status" / "run.json").exists():
        return None
    said = Daemon(machine).status()
    return said if said.step >= step and said.saved.seq >= seq else None


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Stopped]]:
    """Return a function that returns a run of two ranks, of a kind, that was told to save and to stop."""
    started: list[subprocess.Popen[str]] = []
    made: dict[str, Stopped] = {}

    def make(kind: str) -> Stopped:
        if kind not in made:
            base = tmp_path_factory.mktemp(kind)
            where = (base / "out", base / "store", base / "runtime", kind, 1_000_000)
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
            process = subprocess.Popen(
                [str(part) for part in (*launcher, _SCRIPT, *where)],
                env=clean_environ(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            started.append(process)
            made[kind] = tell(kind, base, process)
        return made[kind]

    yield make
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def tell(kind: str, base: Path, process: subprocess.Popen[str]) -> Stopped:
    """Raise a flag on the second rank's machine, wait for the save, then send SIGTERM to one rank alone."""
    machines = [base / "runtime" / str(rank) for rank in range(2)]
    said = [wait(partial(status, machine), process) for machine in machines]
    assert Daemon(machines[1]).flag(5)
    flushed = wait(lambda: status(machines[1], seq=5), process)
    wait(lambda: status(machines[0], step=flushed.saved.step + EVERY_STEPS), process)
    os.kill(said[0 if kind == "ddp" else 1].pid, signal.SIGTERM)
    output = process.communicate(timeout=LAUNCH_SECONDS)[0]
    assert process.returncode != 0, output  # torchrun says so of any rank that does not leave with 0
    told = [json.loads((base / f"out.{rank}").read_text(encoding="utf-8")) for rank in range(2)]
    return Stopped(base, told, flushed.saved.step, (machines[1] / FLAG).exists())


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_all_ranks_leave_at_the_same_step(kind: str, stopped: Callable[[str], Stopped]) -> None:
    """SIGTERM to one rank ends both, with the same step and status, after a save of exactly that step."""
    run = stopped(kind)
    assert [rank["status"] for rank in run.told] == [75, 75]
    assert [rank["left"] for rank in run.told] == [run.left] * 2
    latest = run.registry().latest()
    assert latest is not None
    assert latest.step == run.left


def test_ranks_that_go_on_after_they_were_told_to_leave_end_together(
    stopped: Callable[[str], Stopped],
) -> None:
    """Each of them at the same later step, of which nothing is saved."""
    run = stopped("ddp")
    assert [rank["ended"] for rank in run.told] == [75, 75]
    assert max(manifest.step for manifest in run.manifests()) == run.left


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_every_checkpoint_is_of_one_step_on_all_ranks(kind: str, stopped: Callable[[str], Stopped]) -> None:
    """By interval, by the other rank's flag and at the end: what each rank counts says the same step."""
    run = stopped(kind)
    manifests = run.manifests()
    for manifest in manifests:
        counts = [state["objects"]["count"]["at"] for state in manifest.state.values()]  # type: ignore[index, call-overload]
        assert counts == [manifest.step] * 2
    steps = {manifest.step for manifest in manifests}
    assert run.flushed_at in steps
    assert any(step % EVERY_STEPS == 0 for step in steps)
    assert all(step % EVERY_STEPS == 0 for step in steps - {run.flushed_at, run.left})
    assert not run.has_flag


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_any_number_of_ranks_goes_on(kind: str, count: int, stopped: Callable[[str], Stopped]) -> None:
    """The run goes on from the step at which it was stopped, and finishes."""
    run = stopped(kind)
    told = run.go_on(kind if count > 1 else "plain", count)
    for rank in told:
        assert (rank["began"], rank["left"], rank["status"]) == (run.left, run.left + _GOES_ON, 0)
    if count == len(run.told):
        total = run.left + _GOES_ON
        base = run.base / "whole"
        where = (base / "store", base / "runtime", kind, total)
        base.mkdir()
        whole = ranks(count, "torchrun_train.py", base / "out", *where)
        for before, after, all_of_it in zip(run.told, told, whole, strict=True):
            assert before["losses"] | after["losses"] == all_of_it["losses"]
