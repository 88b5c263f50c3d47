# SPDX-License-Identifier: Apache-2.0
"""Loops that are written as the page says: with a limit in steps, and with two loaders in an epoch."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

for needed in ("torch", "accelerate"):
    pytest.importorskip(needed, reason=f"needs {needed}")

import torch  # noqa: E402 - after the skip
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402 - after the skip

from spotwatch.train.integrations.accelerate import SpotwatchRun  # noqa: E402 - after the skip

from .accelerate_world import Program, forget  # noqa: E402 - after the skip

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("handlers_come_back", "only_accelerator")]


def test_a_limit_that_is_asked_before_a_batch_holds_when_told_at_the_last_step(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """The next life finds that all is done, and trains on nothing more."""

    def live(stop_at: int) -> int:
        forget()
        program = Program(tmp_path, environ)
        with SpotwatchRun(program.ck, program.accelerator) as run:
            for _ in range(program.loader.iteration, 2):
                for (batch,) in program.loader:
                    if run.steps >= 6:
                        break
                    program.train(batch)
                    if run.steps == stop_at - 1:
                        signal.raise_signal(signal.SIGTERM)
                    run.step()
        return run.steps

    with pytest.raises(SystemExit) as left:
        live(6)
    assert left.value.code == 75
    assert live(0) == 6


def test_two_loaders_one_after_the_other_go_on_in_either(tmp_path: Path, environ: dict[str, str]) -> None:
    """Each batch of each epoch is trained on once, in the order of the uninterrupted run."""
    trained: list[tuple[int, str, int]] = []

    def live(stop_at: int) -> None:
        forget()
        program = Program(tmp_path, environ)
        first, second = program.loader, DataLoader(TensorDataset(torch.ones(6, 2)), batch_size=2)
        second = program.accelerator.prepare(second)
        with SpotwatchRun(program.ck, program.accelerator) as run:

            def train(epoch: int, name: str, batch: torch.Tensor) -> None:
                program.train(batch)
                trained.append((epoch, name, run.steps))
                if len(trained) == stop_at:
                    signal.raise_signal(signal.SIGTERM)
                run.step()

            for epoch in range(second.iteration, 2):
                if first.iteration == epoch:
                    for (batch,) in first:
                        train(epoch, "first", batch)
                for (batch,) in second:
                    train(epoch, "second", batch)

    for stop_at in (2, 5, 7, 10):
        with pytest.raises(SystemExit) as left:
            live(stop_at)
        assert left.value.code == 75
    live(0)
    names = (["first"] * 4 + ["second"] * 3) * 2
    assert trained == [(step // 7, name, step) for step, name in enumerate(names)]
