# SPDX-License-Identifier: Apache-2.0
"""Epochs and batches counted by a loader, in runs stopped anywhere: what is seen and what is told."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from spotwatch.train import Checkpointer, ResumableLoader

from .loader_world import Plain

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.usefixtures("handlers_come_back"),
    # Resumed at an epoch's end, a life begins with what is done there.
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

_EPOCHS = 3


def _loader() -> ResumableLoader:
    return ResumableLoader(Plain(22), 4, shuffle=True, seed=3)


class Program:
    """An epoch loop with a scheduler that steps at an epoch's end; keeps what each life has seen."""

    def __init__(self, store: Path, environ: dict[str, str]) -> None:
        self._store = store
        self._environ = environ
        self.seen: list[Any] = []

    def live(self, stop_at: int | None = None, *, enumerates: bool = False, by_step: bool = False) -> int:
        """Train until the end or until told to stop, and return the exit code.

        Args:
            stop_at: the step at which a stop comes.
            enumerates: count steps as `epoch * len(loader) + batch + 1`.
            by_step: count epochs by the step, which is wrong.
        """
        loader = _loader()
        ck = Checkpointer(self._store, run_id="run", every_steps=1000, environ=self._environ)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        ck.track(loader=loader, optimizer=optimizer, scheduler=scheduler)
        step = ck.resume()
        with ck:
            for epoch in range(step // len(loader) if by_step else loader.epoch, _EPOCHS):
                for number, batch in enumerate(loader, start=loader.taken):
                    step = epoch * len(loader) + number + 1 if enumerates else step + 1
                    optimizer.step()
                    self.seen.append((step, epoch, batch.tolist(), scheduler.get_last_lr()))
                    if step == stop_at:
                        os.kill(os.getpid(), signal.SIGTERM)
                    if ck.step(step):
                        return ck.exit_code
                scheduler.step()
        return ck.exit_code


@pytest.fixture
def program(tmp_path: Path, environ: dict[str, str]) -> Program:
    """Return a program without a life."""
    return Program(tmp_path / "store", environ)


@pytest.fixture
def whole(tmp_path: Path, environ: dict[str, str]) -> list[Any]:
    """Return what an uninterrupted run sees."""
    program = Program(tmp_path / "whole", environ)
    assert program.live() == 0
    return program.seen


# An epoch has six batches.
@pytest.mark.parametrize("enumerates", [False, True], ids=["counts on", "enumerates"])
@pytest.mark.parametrize("stops", [(1,), (6,), (7,), (4, 6, 12, 13), (18,)], ids=str)
def test_epochs_counted_by_the_loader_go_on_exactly(
    program: Program,
    whole: list[Any],
    stops: tuple[int, ...],
    enumerates: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Within an epoch, after its first batch and after its last: rate, order and steps, and no warning."""
    for stop in stops:
        assert program.live(stop, enumerates=enumerates) == 75
    assert program.live(enumerates=enumerates) == 0
    assert program.seen == whole
    assert "is empty" not in caplog.text


def test_epochs_counted_by_the_step_are_told_that_one_is_empty(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    """Stopped at an epoch's last batch, a program takes the empty pass for the next epoch, and loses one."""
    assert program.live(6) == 75
    assert "is empty" not in caplog.text
    assert program.live(by_step=True) == 0
    told = [record for record in caplog.records if "is empty" in record.message]
    assert [record.levelno for record in told] == [logging.WARNING]
    assert "all of epoch 0 was taken before" in told[0].message
    assert "`for epoch in range(loader.epoch, epochs)`" in told[0].message


def test_a_loop_that_is_left_at_the_last_batch_is_told_so_too(caplog: pytest.LogCaptureFixture) -> None:
    """A `break` there leaves an epoch whose end was not reached: the next pass has nothing."""
    loader = _loader()
    assert loader.epoch == 0
    for number, _ in enumerate(loader, start=1):
        if number == len(loader):
            break
    assert list(loader) == []
    assert "is empty" in caplog.text


def test_a_loop_without_epochs_is_told_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """`forever` passes over an empty one, and nobody has counted it."""
    first = _loader()
    batches = first.forever()
    for _ in range(len(first)):
        next(batches)
    second = _loader()
    second.load_state_dict(first.state_dict())
    assert next(second.forever()).tolist() == next(batches).tolist()
    assert "is empty" not in caplog.text


def test_batches_taken_are_those_of_the_epoch(caplog: pytest.LogCaptureFixture) -> None:
    """Counted from its beginning, in lives before too; with larger batches, from its end."""
    first = _loader()
    batches = first.forever()
    counts = [first.taken]
    for _ in range(7):
        next(batches)
        counts.append(first.taken)
    assert counts == [0, 1, 2, 3, 4, 5, 6, 1]
    larger = ResumableLoader(Plain(22), 8, shuffle=True, seed=3)
    larger.load_state_dict({**first.state_dict(), "samples": 20})
    assert (larger.taken, len(larger)) == (2, 3)
    assert not caplog.records


class Opened(Plain):
    """A dataset that a worker opens, and that looks for itself."""

    key: int | None = None

    def __getitem__(self, number: int) -> int:
        info = torch.utils.data.get_worker_info()
        return number + (self.key if self.key is not None and info.dataset is self else -1000)


def _open(_worker_id: int) -> None:
    dataset = torch.utils.data.get_worker_info().dataset
    dataset.key = len(dataset)


def test_a_worker_sees_the_programs_own_dataset() -> None:
    """`worker_init_fn` reads it and sets what it needs there, as in a plain DataLoader."""
    loader = ResumableLoader(Opened(12), 4, num_workers=1, worker_init_fn=_open)
    assert [int(number) for batch in loader for number in batch] == list(range(12, 24))
