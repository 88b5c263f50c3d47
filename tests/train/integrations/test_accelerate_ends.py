# SPDX-License-Identifier: Apache-2.0
"""How a run of Accelerate ends: trackers are closed, the program's endings honoured, evaluations made."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

for needed in ("torch", "accelerate"):
    pytest.importorskip(needed, reason=f"needs {needed}")

import torch  # noqa: E402 - after the skip
from accelerate.tracking import GeneralTracker  # noqa: E402 - after the skip

from spotwatch.train.integrations.accelerate import SpotwatchRun  # noqa: E402 - after the skip

from .accelerate_world import Program, forget  # noqa: E402 - after the skip

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("handlers_come_back", "only_accelerator")]


class Notes(GeneralTracker):
    """A tracker that loses what it was not told to finish."""

    name = "notes"
    requires_logging_directory = False
    main_process_only = True

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[Any] = []
        self.finished = 0

    @property
    def tracker(self) -> list[Any]:
        """Return what was logged."""
        return self.logged

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Log how the run is made."""
        self.logged.append(values)

    def log(self, values: dict[str, Any], step: int | None = None, **more: Any) -> None:
        """Log."""
        self.logged.append((step, values))

    def finish(self) -> None:
        """Write the last values."""
        self.finished += 1


def test_trackers_are_closed_at_a_stop(tmp_path: Path, environ: dict[str, str]) -> None:
    """Their last values would be lost; a program that ends by itself closes them itself."""
    notes = Notes()
    program = Program(tmp_path, environ, log_with=[notes])
    program.accelerator.init_trackers("run")

    def train(run: SpotwatchRun) -> None:
        with run:
            signal.raise_signal(signal.SIGTERM)
            for (batch,) in program.loader:
                program.train(batch)
                run.step()

    run = SpotwatchRun(program.ck, program.accelerator)
    with pytest.raises(SystemExit) as left:
        train(run)
    assert left.value.code == program.ck.exit_code == 75
    assert run.steps == 1
    assert notes.finished == 1


def test_trackers_stay_open_when_the_loop_ends_by_itself(tmp_path: Path, environ: dict[str, str]) -> None:
    """What the program logs after it is still written."""
    notes = Notes()
    program = Program(tmp_path, environ, log_with=[notes])
    program.accelerator.init_trackers("run")
    with SpotwatchRun(program.ck, program.accelerator) as run:
        run.step()
    assert program.ck.exit_code == 0
    assert notes.finished == 0


def test_an_error_of_the_program_is_the_programs(tmp_path: Path, environ: dict[str, str]) -> None:
    """It comes out as it was, and nothing of ours claims success."""
    program = Program(tmp_path, environ)

    def train() -> None:
        with SpotwatchRun(program.ck, program.accelerator) as run:
            run.step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert program.ck.exit_code == 76


def test_weights_that_were_swapped_for_an_evaluation_are_back_before_the_save(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """The evaluation is broken off through the program's own `finally`, and only then is the state saved."""
    program = Program(tmp_path, environ)
    weight = program.model.weight
    before = weight.detach().clone()

    def evaluate() -> None:
        with SpotwatchRun(program.ck, program.accelerator) as run, torch.no_grad():
            run.step()
            weight.fill_(7.0)
            try:
                for _ in run.evaluate(program.loader):
                    signal.raise_signal(signal.SIGTERM)
            finally:
                weight.copy_(before)

    with pytest.raises(SystemExit):
        evaluate()
    forget()
    again = Program(tmp_path, environ)
    with SpotwatchRun(again.ck, again.accelerator) as run:
        assert run.evaluates_first
        assert run.steps == 1
        assert torch.equal(again.model.weight, before)
        assert len(list(run.evaluate(again.loader))) == 4
        assert not run.evaluates_first


def test_a_stop_that_is_withdrawn_while_an_evaluation_is_broken_off_is_no_end_of_the_run(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """The evaluation is gone, so the run leaves with 75, to be started again, and not with 0."""
    program = Program(tmp_path, environ)

    def evaluate() -> None:
        with SpotwatchRun(program.ck, program.accelerator) as run:
            run.step()
            try:
                for _ in run.evaluate(program.loader):
                    program.ck._link.signals.stop = True
            finally:
                program.ck._link.signals.stop = False

    with pytest.raises(SystemExit) as left:
        evaluate()
    assert left.value.code == 75


def test_an_evaluation_is_due_once_at_each_multiple(tmp_path: Path, environ: dict[str, str]) -> None:
    """Asked again at the same step, as batches of one step do, it is not due again."""
    program = Program(tmp_path, environ)
    with SpotwatchRun(program.ck, program.accelerator) as run:
        assert not run.is_due(2)
        due = []
        for _ in range(4):
            run.step()
            due.append([run.is_due(2), run.is_due(2)])
    assert due == [[False, False], [True, False], [False, False], [True, False]]


def test_an_evaluation_that_was_not_made_first_is_said(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """A program without that line would leave it out in silence."""
    program = Program(tmp_path, environ)
    with SpotwatchRun(program.ck, program.accelerator) as run:
        run.evaluates_first = True
        run.step()
        run.step()
    assert caplog.text.count("was not made") == 1
