# SPDX-License-Identifier: Apache-2.0
"""The shield of DataLoader workers: deaf to others, obedient to the trainer, and never in its way out."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import pytest

from spotwatch.train.shield import worker_init
from spotwatch.train.signals import STOPPING

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

Start = Callable[[], tuple[multiprocessing.Process, Connection]]


def _worker(connection: Connection) -> None:
    worker_init(0)
    connection.send("ready")
    while connection.recv() != "end":
        connection.send("alive")


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a maker of shielded workers; what is left of them is killed."""
    made: list[multiprocessing.Process] = []
    context = multiprocessing.get_context("fork")

    def maker() -> tuple[multiprocessing.Process, Connection]:
        ours, theirs = context.Pipe()
        process = context.Process(target=_worker, args=(theirs,), daemon=True)
        process.start()
        made.append(process)  # type: ignore[arg-type]  # a process of a context is one to multiprocessing
        assert ours.recv() == "ready"
        return made[-1], ours

    yield maker
    for process in made:
        process.kill()
        process.join()


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_from_elsewhere_is_not_heard(start: Start, number: signal.Signals) -> None:
    """A service manager or launcher signals the whole group; the worker goes on."""
    process, connection = start()
    subprocess.run(["kill", f"-{number.name[3:]}", str(process.pid)], check=True)
    for _ in range(20):
        connection.send("more")
        assert connection.recv() == "alive"
    assert process.is_alive()


def test_the_trainer_itself_is_obeyed(start: Start) -> None:
    """Python's own way of ending child processes ends the worker."""
    process, _ = start()
    process.terminate()
    process.join(10)
    assert process.exitcode == 0


def test_a_worker_can_always_be_killed(start: Start) -> None:
    """The shield is against wishes, not against SIGKILL."""
    process, _ = start()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(10)
    assert process.exitcode == -signal.SIGKILL


_TRAINER = """
import torch
from torch.utils.data import DataLoader
from spotwatch.train.shield import worker_init

batches = iter(DataLoader(range(1000), num_workers=2, worker_init_fn=worker_init))
next(batches)
raise SystemExit(75)
"""


@pytest.mark.timeout(120)
def test_a_trainer_that_leaves_in_the_middle_of_an_epoch_is_not_held_up() -> None:
    """Workers of a loader that is still in use end with the program; a hang would lose the exit status."""
    pytest.importorskip("torch")
    command = [sys.executable, "-c", _TRAINER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 75, done.stderr
