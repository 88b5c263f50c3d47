# SPDX-License-Identifier: Apache-2.0
"""Which calls of `run.step()` count: those since which an optimizer has stepped, whoever steps it."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import Any

import pytest

for needed in ("torch", "accelerate"):
    pytest.importorskip(needed, reason=f"needs {needed}")

import torch  # noqa: E402 - after the skip
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402 - after the skip

from spotwatch.train.integrations.accelerate import SpotwatchRun  # noqa: E402 - after the skip

from .accelerate_world import Program  # noqa: E402 - after the skip

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("handlers_come_back", "only_accelerator")]


def test_where_no_step_is_ever_seen_each_call_counts(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Else an order would go unheard for a whole training; a step that is seen ends that."""
    program = Program(tmp_path, environ)
    counted = []
    with caplog.at_level(logging.WARNING), SpotwatchRun(program.ck, program.accelerator) as run:
        for number in range(135):
            program.accelerator.backward(program.model(torch.ones(1, 2)).sum())
            if number == 132:
                program.optimizer.step()
            run.step()
            counted.append(run.steps)
    assert counted[126:] == [0, 0, 1, 2, 3, 4, 5, 5, 5]
    assert caplog.text.count("over prepared weights was seen") == 1


def test_batches_that_are_dropped_are_no_sign_of_a_step_that_is_not_seen(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """However many there are."""
    program = Program(tmp_path, environ)
    with caplog.at_level(logging.WARNING), SpotwatchRun(program.ck, program.accelerator) as run:
        for _ in range(150):
            program.accelerator.backward(program.model(torch.ones(1, 2)).sum())
            assert not run.step()
            program.optimizer.zero_grad()
            run.step()
    assert run.steps == 150
    assert "was seen" not in caplog.text


class Lookahead(torch.optim.Optimizer):
    """An optimizer around another, without what torch's own class begins with, as was usual."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.optimizer = inner
        self.param_groups, self.state, self.defaults = inner.param_groups, inner.state, inner.defaults

    def step(self, closure: Any = None) -> Any:
        """Step the other."""
        return self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop what it would use."""
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return that of the other."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give it to the other."""
        self.optimizer.load_state_dict(state_dict)
        self.param_groups = self.optimizer.param_groups


class TwoSteps(torch.optim.Optimizer):
    """An optimizer whose step has another name, and is another optimizer's, as SAM's is."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, inner.defaults)
        self.inner = inner
        self.param_groups = inner.param_groups

    def second_step(self) -> None:
        """Step."""
        self.inner.step()


def wrapped(base: Path, environ: dict[str, str], wrap: Any) -> Program:
    """Return a program whose optimizer is inside another."""
    program = Program(base, environ)
    program.accelerator.free_memory()
    model = torch.nn.Linear(2, 1)
    program.model, program.optimizer, program.loader = program.accelerator.prepare(
        model,
        wrap(torch.optim.SGD(model.parameters(), lr=0.1)),
        DataLoader(TensorDataset(torch.ones(12, 2)), batch_size=2),
    )
    return program


@pytest.mark.parametrize("wrap", [Lookahead, TwoSteps])
@pytest.mark.parametrize("each", [1, 2])
def test_a_step_of_an_optimizer_inside_a_prepared_one_counts(
    tmp_path: Path, environ: dict[str, str], wrap: type[Lookahead | TwoSteps], each: int
) -> None:
    """It uses the gradients, though none is dropped; those accumulated by hand are waited for."""
    program = wrapped(tmp_path, environ, wrap)
    counted = []
    with SpotwatchRun(program.ck, program.accelerator, exits=False) as run:
        for number, (batch,) in enumerate(program.loader):
            if number % each == 0:
                program.optimizer.zero_grad()
            program.accelerator.backward(program.model(batch).sum())
            if number == 2:
                signal.raise_signal(signal.SIGTERM)
            if number % each == each - 1:
                getattr(program.optimizer.optimizer, "second_step", program.optimizer.step)()
            is_over = run.step()
            counted.append(run.steps)
            if is_over:
                break
    assert program.ck.exit_code == 75
    assert counted == ([1, 2, 3] if each == 1 else [0, 1, 1, 2])


def test_gradients_made_after_the_step_do_not_hide_it(tmp_path: Path, environ: dict[str, str]) -> None:
    """They are looked at, as for their noise, and dropped at the head of the loop."""
    program = Program(tmp_path, environ)
    counted = []
    with SpotwatchRun(program.ck, program.accelerator, exits=False) as run:
        for number, (batch,) in enumerate(program.loader):
            program.optimizer.zero_grad()
            program.train(batch)
            program.accelerator.backward(program.model(batch).abs().sum())
            if number == 2:
                signal.raise_signal(signal.SIGTERM)
            is_over = run.step()
            counted.append(run.steps)
            if is_over:
                break
    assert program.ck.exit_code == 75
    assert counted == [1, 2, 3]


def test_a_step_of_one_optimizer_uses_no_gradients_of_another(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """One that accumulates by hand is waited for, while the other steps at each batch."""
    program = Program(tmp_path, environ)
    other = torch.nn.Linear(2, 1)
    slow, slowly = program.accelerator.prepare(other, torch.optim.SGD(other.parameters(), lr=0.1))
    counted = []
    with SpotwatchRun(program.ck, program.accelerator) as run:
        for number, (batch,) in enumerate(program.loader):
            program.train(batch)
            program.accelerator.backward(slow(batch).sum())
            if number % 2:
                slowly.step()
                slowly.zero_grad()
            run.step()
            counted.append(run.steps)
    assert counted == [0, 1, 1, 2]
