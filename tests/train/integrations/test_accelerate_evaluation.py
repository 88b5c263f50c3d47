# SPDX-License-Identifier: Apache-2.0
"""Evaluations that do not end as a `for` does: left early, swallowed, interleaved, inside accumulation."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

for needed in ("torch", "accelerate"):
    pytest.importorskip(needed, reason=f"needs {needed}")

import torch  # noqa: E402 - after the skip
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402 - after the skip

from spotwatch.errors import ConfigError  # noqa: E402 - after the skip
from spotwatch.train.integrations.accelerate import SpotwatchRun  # noqa: E402 - after the skip

from .accelerate_world import Program, forget  # noqa: E402 - after the skip

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("handlers_come_back", "only_accelerator")]


class Evaluating(Program):
    """A program with a loader for its evaluation."""

    def __init__(self, base: Path, environ: dict[str, str], **options: Any) -> None:
        super().__init__(base, environ, **options)
        self.evaluation = self.accelerator.prepare(DataLoader(TensorDataset(torch.ones(6, 2)), batch_size=2))
        self.run = SpotwatchRun(self.ck, self.accelerator)


def left_of(base: Path, environ: dict[str, str]) -> tuple[int, int, int, bool]:
    """Return the step of the next life, what it has left of both loaders, and whether it evaluates first."""
    forget()
    again = Evaluating(base, environ)
    with again.run as run:
        is_first, steps = run.evaluates_first, run.steps
        left = len(list(again.loader)), len(list(again.evaluation))
    return steps, *left, is_first


def test_an_evaluation_that_was_left_early_and_is_still_held_is_over_at_the_next_step(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """What is saved then is where the loop is, and the evaluation begins anew next time."""
    program = Evaluating(tmp_path, environ)
    held = []

    def train() -> None:
        with program.run as run:
            for number, (batch,) in enumerate(program.loader):
                if number == 1:
                    signal.raise_signal(signal.SIGTERM)
                program.train(batch)
                run.step()
                held.append(run.evaluate(program.evaluation))
                next(held[-1])

    with pytest.raises(SystemExit) as left:
        train()
    assert left.value.code == 75
    assert left_of(tmp_path, environ) == (2, 2, 3, False)
    assert held


def test_an_evaluation_that_is_still_held_does_not_hold_the_end_of_the_run(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """The last save is of the end, with no batch left of the epoch."""
    program = Evaluating(tmp_path, environ)
    with program.run as run:
        run.step()
        held = [run.evaluate(program.evaluation)]
        next(held[0])
        for (batch,) in program.loader:
            program.train(batch)
    assert program.loader.iteration == 1
    forget()
    again = Evaluating(tmp_path, environ)
    with again.run:
        assert again.loader.iteration == 1
    held.clear()


def test_a_step_inside_an_evaluation_ends_it_with_words(tmp_path: Path, environ: dict[str, str]) -> None:
    """Cut short in silence, its result would be wrong."""
    program = Evaluating(tmp_path, environ)
    with program.run as run:
        batches = run.evaluate(program.evaluation)
        next(batches)
        run.step()
        with pytest.raises(ConfigError, match="before this evaluation had ended"):
            next(batches)


def test_a_program_that_swallows_the_breaking_off_is_saved_where_it_is(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """It has gone on without the result, so the next step is what is saved, whole."""
    program = Evaluating(tmp_path, environ)

    def train() -> None:
        with program.run as run:
            for (batch,) in program.loader:
                program.train(batch)
                run.step()
                signal.raise_signal(signal.SIGTERM)
                try:
                    list(run.evaluate(program.evaluation))
                except:  # noqa: E722 - as people write
                    caplog.clear()

    with pytest.raises(SystemExit) as left:
        train()
    assert left.value.code == 75
    assert "except Exception" in caplog.text
    assert left_of(tmp_path, environ) == (2, 2, 3, False)


def test_a_last_evaluation_whose_breaking_off_is_swallowed_is_made_by_the_next_life(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """No step follows, so nothing is lost by going back to before it."""
    program = Evaluating(tmp_path, environ)

    def train() -> None:
        with program.run as run:
            run.step()
            signal.raise_signal(signal.SIGTERM)
            try:
                list(run.evaluate(program.evaluation))
            except:  # noqa: E722 - as people write
                list(program.loader)

    with pytest.raises(SystemExit) as left:
        train()
    assert left.value.code == 75
    assert left_of(tmp_path, environ) == (1, 4, 3, True)


def test_an_evaluation_inside_gradient_accumulation_is_made_to_its_end(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """What was accumulated cannot be saved, so the stop waits for the step."""
    program = Evaluating(tmp_path, environ, gradient_accumulation_steps=2)
    evaluated = []

    def train() -> None:
        with program.run as run:
            for number, (batch,) in enumerate(program.loader):
                program.train(batch)
                run.step()
                if number == 0:
                    signal.raise_signal(signal.SIGTERM)
                    evaluated.append(len(list(run.evaluate(program.evaluation))))

    with pytest.raises(SystemExit) as left:
        train()
    assert left.value.code == 75
    assert evaluated == [3]
    assert left_of(tmp_path, environ) == (1, 2, 3, False)


def test_a_run_that_ends_with_gradients_left_over_is_finished(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """Nothing will use them; else it would be begun again for ever."""
    program = Evaluating(tmp_path, environ, gradient_accumulation_steps=3)
    with program.run as run:
        for number, (batch,) in enumerate(program.loader):
            program.train(batch)
            run.step()
            if number == 1:
                break
        else:
            pytest.fail("the epoch has ended")
    assert program.ck.exit_code == 0


@pytest.mark.parametrize("is_told_before", [False, True])
def test_training_between_two_evaluations_makes_a_new_beginning(
    tmp_path: Path, environ: dict[str, str], *, is_told_before: bool
) -> None:
    """A batch that was taken since the first one, before `run.step()`, is not taken again."""
    program = Evaluating(tmp_path, environ)

    def train() -> None:
        with program.run as run:
            run.step()
            if is_told_before:
                signal.raise_signal(signal.SIGTERM)
            with suppress(BaseException):
                list(run.evaluate(program.evaluation))
            for (batch,) in program.loader:
                program.train(batch)
                signal.raise_signal(signal.SIGTERM)
                list(run.evaluate(program.evaluation))

    with pytest.raises(SystemExit) as left:
        train()
    assert left.value.code == 75
    assert left_of(tmp_path, environ) == (1, 3, 3, True)


def test_two_evaluations_at_once_are_broken_off_to_before_both(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """The second begins where the first has taken a batch already, which is not what is saved."""
    program = Evaluating(tmp_path, environ)

    def evaluate() -> None:
        with program.run as run:
            run.step()
            for _ in zip(run.evaluate(program.loader), run.evaluate(program.evaluation), strict=False):
                signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as left:
        evaluate()
    assert left.value.code == 75
    assert left_of(tmp_path, environ) == (1, 4, 3, True)


def test_an_evaluation_that_is_left_early_does_not_hide_the_last_batch_of_training(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """Accelerate steps at the last batch of the loader that it holds for the active one."""
    program = Evaluating(tmp_path, environ, gradient_accumulation_steps=3)
    with program.run as run:
        for number, (batch,) in enumerate(program.loader):
            program.train(batch)
            run.step()
            if number == 2:
                for _ in run.evaluate(program.evaluation):
                    break
    assert run.steps == 2
    assert program.ck.exit_code == 0


def test_an_evaluation_over_the_training_loader_is_no_epoch(tmp_path: Path, environ: dict[str, str]) -> None:
    """Counted as one, it would let the next life leave out an epoch."""

    def live(told_at: int) -> tuple[int, int]:
        forget()
        program = Evaluating(tmp_path, environ)
        with program.run as run:
            for _ in range(program.loader.iteration, 3):
                for (batch,) in program.loader:
                    program.train(batch)
                    if run.steps == told_at:
                        signal.raise_signal(signal.SIGTERM)
                    run.step()
                assert len(list(run.evaluate(program.loader))) == 4
        return run.steps, program.loader.iteration

    with pytest.raises(SystemExit) as left:
        live(9)
    assert left.value.code == 75
    assert live(-1) == (12, 3)
