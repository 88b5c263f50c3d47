# SPDX-License-Identifier: Apache-2.0
"""What a run would lose without a word is said as it begins, with what to do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

for needed in ("torch", "accelerate"):
    pytest.importorskip(needed, reason=f"needs {needed}")

import torch  # noqa: E402 - after the skip
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402 - after the skip

from spotwatch.train.integrations.accelerate import SpotwatchRun  # noqa: E402 - after the skip

from .accelerate_world import Program  # noqa: E402 - after the skip

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("only_accelerator")]


def test_what_a_hook_saves_besides_models_is_said_to_be_lost(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Examples save averaged weights so, which would begin anew."""
    program = Program(tmp_path, environ)
    program.accelerator.register_save_state_pre_hook(lambda *_: None)
    with SpotwatchRun(program.ck, program.accelerator):
        pass
    assert "but nothing else that they write" in caplog.text
    assert "register_for_checkpointing" in caplog.text


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_training_loader_that_is_not_prepared_is_said(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture, *, is_prepared: bool
) -> None:
    """The epoch would begin anew in a later life, although another loader is prepared."""
    program = Program(tmp_path, environ)
    other = DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=2)
    with SpotwatchRun(program.ck, program.accelerator) as run:
        for (batch,) in program.loader if is_prepared else other:
            program.train(batch)
            run.step()
    assert caplog.text.count("no prepared loader was read") == (not is_prepared)


def test_a_program_that_prepares_no_loader_is_not_asked_for_one(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """It makes its batches itself, from the number of the step perhaps."""
    program = Program(tmp_path, environ)
    program.accelerator.free_memory()
    model = torch.nn.Linear(2, 1)
    program.model, program.optimizer = program.accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1)
    )
    with SpotwatchRun(program.ck, program.accelerator) as run:
        while run.steps < 2:
            program.train(torch.full((2, 2), float(run.steps)))
            run.step()
    assert "loader" not in caplog.text


def test_a_step_after_a_pass_is_not_said_to_read_nothing(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """It is one of all batches of the epoch."""
    program = Program(tmp_path, environ)
    with SpotwatchRun(program.ck, program.accelerator) as run:
        for _ in range(program.loader.iteration, 2):
            for (batch,) in program.loader:
                program.accelerator.backward(program.model(batch).sum())
            program.optimizer.step()
            program.optimizer.zero_grad()
            run.step()
    assert run.steps == 2
    assert "loader" not in caplog.text


def test_a_value_that_has_no_safe_form_later_ends_no_evaluation(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody has told the run to stop; a save that comes would fail by it, and say so."""
    program = Program(tmp_path, environ)
    values: dict[str, object] = {"best": 1.0}
    kept = SimpleNamespace(state_dict=lambda: values, load_state_dict=values.update)
    program.accelerator.register_for_checkpointing(kept)
    evaluation = program.accelerator.prepare(DataLoader(TensorDataset(torch.ones(6, 2)), batch_size=2))
    with SpotwatchRun(program.ck, program.accelerator) as run:
        for (batch,) in program.loader:
            program.train(batch)
            run.step()
            values["best"] = Path("best")
            assert len(list(run.evaluate(evaluation))) == 3
    assert run.steps == 4
    assert program.ck.exit_code == 76
    assert caplog.text.count("not kept for an evaluation") == 1
