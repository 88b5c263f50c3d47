# SPDX-License-Identifier: Apache-2.0
"""Evaluations of all processes together, and through what a program wraps around a loader."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

for needed in ("torch", "accelerate"):
    pytest.importorskip(needed, reason=f"needs {needed}")

import torch  # noqa: E402 - after the skip
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402 - after the skip

from spotwatch.train.integrations.accelerate import SpotwatchRun  # noqa: E402 - after the skip
from spotwatch.train.integrations.accelerate_waiting import said_if_long  # noqa: E402 - after the skip

from .accelerate_world import Program  # noqa: E402 - after the skip

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("handlers_come_back", "only_accelerator")]


def timers() -> list[threading.Thread]:
    """Return those that are running."""
    return [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def shown(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield them, as a bar of progress does."""
    yield from batches


WRAPPERS: dict[str, Callable[[Any], Iterable[Any]]] = {
    "none": lambda loader: loader,
    "generator": shown,
    "enumerate": enumerate,
    "map": lambda loader: map(tuple, loader),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_evaluation_that_is_left_early_does_not_hide_the_last_batch_of_training(
    tmp_path: Path, environ: dict[str, str], wrapper: str
) -> None:
    """Accelerate would hold its loader for the active one, and make no step at the end of training's."""
    program = Program(tmp_path, environ, gradient_accumulation_steps=3)
    evaluation = program.accelerator.prepare(DataLoader(TensorDataset(torch.ones(6, 2)), batch_size=2))
    with SpotwatchRun(program.ck, program.accelerator) as run:
        for number, (batch,) in enumerate(program.loader):
            program.train(batch)
            run.step()
            if number == 2:
                for _ in run.evaluate(WRAPPERS[wrapper](evaluation)):
                    break
    assert run.steps == 2
    assert program.ck.exit_code == 0


def test_a_loader_that_training_has_begun_meanwhile_is_not_ended(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """An evaluation that was left and is still held is closed at the next step, within the epoch."""
    program = Program(tmp_path, environ, gradient_accumulation_steps=3)
    evaluation = program.accelerator.prepare(DataLoader(TensorDataset(torch.ones(6, 2)), batch_size=2))
    with SpotwatchRun(program.ck, program.accelerator) as run:
        held = run.evaluate(shown(evaluation))
        next(held)
        for (batch,) in program.loader:
            program.train(batch)
            run.step()
    assert run.steps == 2
    assert program.ck.exit_code == 0


def test_a_long_wait_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """It may never end, and nothing else tells why."""
    with said_if_long(0.001, "nobody comes"):
        until = time.monotonic() + 60
        while "nobody comes" not in caplog.text and time.monotonic() < until:
            time.sleep(0.01)
    assert "nobody comes" in caplog.text
    caplog.clear()
    with said_if_long(3600.0, "nobody comes"):
        assert timers()
    assert not timers()
    assert not caplog.text


def test_an_evaluation_looks_after_its_first_wait_for_other_processes(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """On the main process alone it would hang there without a word."""
    program = Program(tmp_path, environ)
    watched: list[bool] = []

    def reduce(flag: torch.Tensor, *, reduction: str) -> torch.Tensor:
        assert reduction == "sum"
        watched.append(bool(timers()))
        return flag

    with SpotwatchRun(program.ck, program.accelerator) as run:
        run._accelerator = SimpleNamespace(num_processes=2, device="cpu", reduce=reduce)
        assert len(list(run.evaluate(program.loader))) == 4
        run._accelerator = program.accelerator
    assert watched == [True, False, False, False]
