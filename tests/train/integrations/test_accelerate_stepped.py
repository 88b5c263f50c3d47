# SPDX-License-Identifier: Apache-2.0
"""What a program steps between two evaluations of one step: once, wherever it is told to stop."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

for needed in ("torch", "accelerate"):
    pytest.importorskip(needed, reason=f"needs {needed}")

import torch  # noqa: E402 - after the skip
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402 - after the skip

from spotwatch.train.integrations.accelerate import SpotwatchRun  # noqa: E402 - after the skip

from .accelerate_world import Program, forget  # noqa: E402 - after the skip

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("handlers_come_back", "only_accelerator")]


class Best:
    """The best result so far, as a program registers it to stop early."""

    def __init__(self) -> None:
        self.value = torch.tensor(9.0)
        self.waited = 0

    def state_dict(self) -> dict[str, Any]:
        """Return it."""
        return {"value": self.value, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self.value, self.waited = state["value"], state["waited"]


class Stepping(Program):
    """A program that steps a scheduler and a count after the first of two evaluations."""

    def __init__(self, base: Path, environ: dict[str, str], rate: Any) -> None:
        super().__init__(base, environ)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.evaluation = self.accelerator.prepare(DataLoader(TensorDataset(torch.ones(6, 2)), batch_size=2))
        self.scheduler = self.accelerator.prepare(
            torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer.optimizer, factor=0.5, patience=0)
        )
        self.best = Best()
        self.average = torch.nn.Linear(2, 1)
        self.accelerator.register_for_checkpointing(self.best, self.average)

    @property
    def noted(self) -> dict[str, float]:
        """Return what is stepped."""
        return {
            "rate": float(self.optimizer.param_groups[0]["lr"]),
            "bad": self.scheduler.scheduler.num_bad_epochs,
            "seen": self.scheduler.scheduler.last_epoch,
            "best": float(self.best.value),
            "waited": self.best.waited,
        }

    def evaluate(self, run: SpotwatchRun, told_in: int) -> None:
        """Evaluate twice, with weights that are exchanged with their average meanwhile."""
        self.exchange()
        try:
            for number in range(2):
                for _ in run.evaluate(self.evaluation):
                    if number == told_in:
                        signal.raise_signal(signal.SIGTERM)
                if number == 0:
                    self.scheduler.step(9.0 + run.steps)
                    self.best.value.sub_(1.0)
                    self.best.waited += 1
        finally:
            self.exchange()

    def exchange(self) -> None:
        """Exchange the weights of the model with those of its average."""
        with torch.no_grad():
            for one, other in zip(self.model.parameters(), self.average.parameters(), strict=True):
                kept = one.clone()
                one.copy_(other)
                other.copy_(kept)


@pytest.mark.parametrize("told_in", [0, 1])
@pytest.mark.parametrize("rate", [0.125, torch.tensor(0.125)], ids=["number", "tensor"])
def test_what_is_stepped_between_two_evaluations_is_stepped_once(
    tmp_path: Path, environ: dict[str, str], rate: Any, told_in: int
) -> None:
    """The next life makes both evaluations, so it begins with what was before the first."""

    def live(base: Path, told_at: int) -> dict[str, float]:
        forget()
        program = Stepping(base, environ, rate.clone() if isinstance(rate, torch.Tensor) else rate)
        with SpotwatchRun(program.ck, program.accelerator) as run:
            if run.evaluates_first:
                program.evaluate(run, -1)
            for _ in range(program.loader.iteration, 3):
                for (batch,) in program.loader:
                    program.train(batch)
                    run.step()
                program.evaluate(run, told_in if run.steps == told_at else -1)
        return program.noted

    straight = live(tmp_path / "straight", 0)
    with pytest.raises(SystemExit) as left:
        live(tmp_path / "told", 8)
    assert left.value.code == 75
    assert straight["rate"] < 0.125
    assert live(tmp_path / "told", 0) == straight


def test_an_average_that_is_exchanged_for_an_evaluation_is_not_put_back_twice(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """The program's own `finally` has exchanged it; what it was inside is no state to go on from."""
    program = Stepping(tmp_path, environ, 0.125)
    before = program.average.weight.detach().clone()

    def live() -> None:
        with SpotwatchRun(program.ck, program.accelerator) as run:
            run.step()
            program.evaluate(run, 1)

    with pytest.raises(SystemExit) as left:
        live()
    assert left.value.code == 75
    forget()
    again = Stepping(tmp_path, environ, 0.125)
    with SpotwatchRun(again.ck, again.accelerator) as run:
        assert run.evaluates_first
        assert torch.equal(again.average.weight, before)


class Free(torch.optim.SGD):
    """An optimizer that keeps other weights while it is evaluated, as schedule-free ones do."""

    def __init__(self, weights: Any) -> None:
        super().__init__(weights, lr=0.1)
        for group in self.param_groups:
            group["train_mode"] = False
            group["schedule"] = "free"

    def train(self) -> None:
        """Take the weights that are trained."""
        self._turn(2.0, is_training=True)

    def eval(self) -> None:
        """Take those to evaluate."""
        self._turn(0.5, is_training=False)

    def _turn(self, factor: float, *, is_training: bool) -> None:
        for group in self.param_groups:
            if group["train_mode"] != is_training:
                group["train_mode"] = is_training
                for weight in group["params"]:
                    weight.data.mul_(factor)


def test_a_mode_that_the_program_takes_back_itself_is_left_so(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """Its weights are those of training again, so a later life must not turn them once more."""

    def live(base: Path, told_at: int) -> list[float]:
        forget()
        program = Program(base, environ)
        program.accelerator.free_memory()
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        loaders = (DataLoader(TensorDataset(torch.ones(6, 2)), batch_size=2) for _ in range(2))
        program.model, program.optimizer, program.loader, evaluation = program.accelerator.prepare(
            model, Free(model.parameters()), *loaders
        )

        def evaluate(*, is_told: bool) -> None:
            program.optimizer.eval()
            try:
                for _ in run.evaluate(evaluation):
                    if is_told:
                        signal.raise_signal(signal.SIGTERM)
            finally:
                program.optimizer.train()

        with SpotwatchRun(program.ck, program.accelerator) as run:
            if run.evaluates_first:
                evaluate(is_told=False)
            for _ in range(program.loader.iteration, 2):
                program.optimizer.train()
                for (batch,) in program.loader:
                    program.train(batch)
                    run.step()
                evaluate(is_told=run.steps == told_at)
        return model.weight.flatten().tolist()

    straight = live(tmp_path / "straight", 0)
    with pytest.raises(SystemExit) as left:
        live(tmp_path / "told", 3)
    assert left.value.code == 75
    assert live(tmp_path / "told", 0) == straight
