# SPDX-License-Identifier: Apache-2.0
"""The shipped recipe for torchrun, run for real: on two nodes, on one, and on one rank, as one run.

Both nodes are this machine. Each start costs about five seconds on a quiet machine: torchrun and each rank
import torch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import until
from tests.train.launching import clean_environ
from tests.train.rendezvous import rendezvous

pytest.importorskip("torch", reason="the trainer is a torch program")

_RECIPES = Path(__file__).parents[1] / "examples" / "recipes"
_WAIT_SECONDS = 120
"""For anything of torchrun's."""


class Node:
    """A machine that has its part in a torchrun job: folders of its own, one store for all."""

    def __init__(self, base: Path, number: int) -> None:
        self.base = base
        self.folder = base / f"node-{number}"
        self.folder.mkdir()
        self.log = self.folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, total_steps: int, **variables: str) -> None:
        """Start the recipe as its page says."""
        trainer = [
            *("train_ranks.py", "--url", str(self.base / "store"), "--run-id", "run"),
            *(
                "--total-steps",
                str(total_steps),
                "--step-seconds",
                "0.02",
                "--trace",
                str(self.base / "trace"),
            ),
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["bash", "torchrun-node.sh", *trainer],
                cwd=_RECIPES,
                env=self.environ() | variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def environ(self) -> dict[str, str]:
        """Return the machine's environment."""
        return clean_environ() | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SPOTWATCH_RUNTIME_DIR": str(self.folder / "run"),
            "SPOTWATCH_STATE_DIR": str(self.folder / "state"),
            "SPOTWATCH_PROVIDERS": "file",
            "SPOTWATCH_HTTP__LISTEN": "",
            "SPOTWATCH_POLICY__DRAIN_SECONDS": "0",
        }

    def stop(self) -> None:
        """Announce that this machine goes."""
        command = [sys.executable, "-m", "spotwatch", "trigger", "stop"]
        subprocess.run(command, env=self.environ(), check=True, timeout=60, stdout=subprocess.DEVNULL)

    def end(self) -> int:
        """Return the exit status."""
        assert self.process is not None
        return self.process.wait(_WAIT_SECONDS)

    def text(self) -> str:
        """Return what it has printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")


Maker = Callable[[], Node]


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Maker]:
    """Give a function that makes one more node; all share a store."""
    made: list[Node] = []

    def make() -> Node:
        made.append(Node(tmp_path, len(made)))
        return made[-1]

    yield make
    for node in made:
        if node.process is not None and node.process.poll() is None:
            # First exec itself, so that it takes along torchrun, which is in a group of its own.
            node.process.send_signal(signal.SIGTERM)
            try:
                node.process.wait(20)
            except subprocess.TimeoutExpired:
                node.process.kill()
        if node.process is not None:
            node.process.wait()


def executed(base: Path) -> list[tuple[int, int, int]]:
    """Return each executed step with its rank and the number of ranks."""
    trace = base / "trace"
    if not trace.exists():
        return []
    rows = [tuple(map(int, row.split())) for row in trace.read_text(encoding="ascii").splitlines()]
    return [(step, rank, ranks) for step, rank, ranks in rows]


@pytest.mark.timeout(600)
async def test_two_nodes_then_one_then_one_rank(make_node: Maker, tmp_path: Path) -> None:
    """Whoever is told, all ranks leave at one step; the next start goes on from it; no step runs twice."""
    port = _free_port()
    first, second = make_node(), make_node()
    for number, node in enumerate((first, second)):
        node.start(100_000, NODES="2", NODE=str(number), RANKS="1", PORT=port)
    await until(lambda: len(executed(tmp_path)) > 40, _WAIT_SECONDS, "two nodes train")
    second.stop()
    assert second.end() == 75, second.text()
    # Nothing was announced there, and torchrun's own status is 1.
    assert first.end() == 75, first.text()
    two_nodes = executed(tmp_path)
    left = max(step for step, _, _ in two_nodes)
    assert sorted(two_nodes) == [(step, rank, 2) for step in range(1, left + 1) for rank in (0, 1)]

    one = make_node()
    one.start(100_000, RANKS="2", PORT=_free_port())
    await until(lambda: len(executed(tmp_path)) > len(two_nodes) + 40, _WAIT_SECONDS, "two ranks train")
    one.stop()
    assert one.end() == 75, one.text()
    two_ranks = executed(tmp_path)[len(two_nodes) :]
    again = max(step for step, _, _ in two_ranks)
    assert sorted(two_ranks) == [(step, rank, 2) for step in range(left + 1, again + 1) for rank in (0, 1)]

    fresh = make_node()
    fresh.start(again + 20, RANKS="1", PORT=_free_port())
    assert fresh.end() == 0, fresh.text()
    one_rank = executed(tmp_path)[len(two_nodes) + len(two_ranks) :]
    assert one_rank == [(step, 0, 1) for step in range(again + 1, again + 21)]


def _free_port() -> str:
    """Return a port where nodes can meet."""
    return rendezvous()["MASTER_PORT"]
