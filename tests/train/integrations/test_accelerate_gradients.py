# SPDX-License-Identifier: Apache-2.0
"""Gradients that a program accumulates by hand: none is lost, wherever it is told to stop."""

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

from .accelerate_loops import Loop, Numbers, lived  # noqa: E402 - after the skip
from .accelerate_world import Program  # noqa: E402 - after the skip

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("handlers_come_back", "only_accelerator")]

EACH = 3


def steps_here(life: Loop, number: int, how: str) -> bool:
    """Tell whether a program steps after this batch of the epoch."""
    if how == "first":
        return number % EACH == 0
    return (number + 1) % EACH == 0 or number == len(life.loaders[0]) - 1


def by_hand(life: Loop, how: str, *, drops_before: bool = False, is_numbered: bool = True) -> None:
    """Train as examples do that divide the number of the batch."""
    (loader,) = life.loaders
    with life.run as run:
        for _ in range(loader.iteration, 3):
            for number, batch in enumerate(loader, start=run.taken(loader) if is_numbered else 0):
                if drops_before and (number == 0 or steps_here(life, number - 1, how)):
                    life.optimizer.zero_grad()
                loss = life.model(batch).square().mean()
                life.accelerator.backward(loss)
                life.trained.append([float(number), loss.item(), *batch.flatten().tolist()])
                life.tell()
                if steps_here(life, number, how):
                    life.optimizer.step()
                    if not drops_before:
                        life.optimizer.zero_grad()
                run.step()


@pytest.mark.parametrize("how", ["first", "last"])
@pytest.mark.parametrize("drops_before", [False, True])
@pytest.mark.parametrize("stops", [(1,), (2,), (3,), (5, 3), (7,)], ids=str)
def test_gradients_accumulated_by_hand_are_not_lost(
    tmp_path: Path, environ: dict[str, str], how: str, stops: tuple[int, ...], *, drops_before: bool
) -> None:
    """The stop waits for the step, and the next life numbers its batches on."""

    def run(name: str, stops: tuple[int, ...]) -> list[list[float]]:
        def loop(life: Loop) -> None:
            by_hand(life, how, drops_before=drops_before)

        return lived(
            tmp_path / name,
            environ,
            lambda _: [DataLoader(Numbers(20), batch_size=4, shuffle=True)],
            loop,
            stops,
        )

    assert run("stopped", stops) == run("straight", ())


@pytest.mark.parametrize("is_numbered", [False, True])
def test_batches_that_are_numbered_from_0_in_the_middle_of_an_epoch_are_said(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture, *, is_numbered: bool
) -> None:
    """A program that accumulates by that number would step after other batches."""

    def loop(life: Loop) -> None:
        by_hand(life, "last", is_numbered=is_numbered)

    lived(tmp_path, environ, lambda _: [DataLoader(Numbers(20), batch_size=4)], loop, (2,))
    assert caplog.text.count("start=run.taken(loader)") == (not is_numbered)


def test_a_batch_that_is_dropped_is_done(tmp_path: Path, environ: dict[str, str]) -> None:
    """Nothing of it is left that a save would lose, though no optimizer has stepped."""
    program = Program(tmp_path, environ)
    with SpotwatchRun(program.ck, program.accelerator) as run:
        for (batch,) in program.loader:
            program.accelerator.backward(program.model(batch).sum())
            assert not run.step()
            program.optimizer.zero_grad()
            assert not run.step()
    assert run.steps == 4


def test_an_optimizer_that_is_stepped_itself_counts(tmp_path: Path, environ: dict[str, str]) -> None:
    """A program may hold on to torch's, and one that is not prepared cannot be waited for."""
    program = Program(tmp_path, environ)
    with SpotwatchRun(program.ck, program.accelerator) as run:
        for (batch,) in program.loader:
            program.optimizer.optimizer.zero_grad()
            program.accelerator.backward(program.model(batch).sum())
            program.optimizer.optimizer.step()
            run.step()
    assert run.steps == 4
    assert "backward" not in vars(program.accelerator)


def test_a_run_without_a_prepared_optimizer_counts(tmp_path: Path, environ: dict[str, str]) -> None:
    """Who steps is not known then, so that each batch is taken for a step, as the program says."""
    program = Program(tmp_path, environ)
    program.accelerator.free_memory()
    model, loader = program.accelerator.prepare(
        torch.nn.Linear(2, 1), DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=2)
    )
    with SpotwatchRun(program.ck, program.accelerator) as run:
        for (batch,) in loader:
            program.accelerator.backward(model(batch).sum())
            run.step()
    assert run.steps == 4


def test_an_evaluation_with_gradients_in_hand_is_made_to_its_end(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """A save there would lose them; the stop is heard at the next step."""
    program = Program(tmp_path, environ)
    evaluation = program.accelerator.prepare(DataLoader(TensorDataset(torch.ones(6, 2)), batch_size=2))
    evaluated: list[Any] = []

    def live() -> None:
        with SpotwatchRun(program.ck, program.accelerator) as run:
            for number, (batch,) in enumerate(program.loader):
                program.accelerator.backward(program.model(batch).sum())
                if number == 2:
                    signal.raise_signal(signal.SIGTERM)
                    evaluated.extend(run.evaluate(evaluation))
                if number % 2:
                    program.optimizer.step()
                    program.optimizer.zero_grad()
                run.step()

    with pytest.raises(SystemExit) as left:
        live()
    assert left.value.code == 75
    assert len(evaluated) == 3


def test_a_loop_that_ends_with_gradients_in_hand_is_saved(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """What is trained is worth more than a batch that no step has used; told to stop, it is said."""
    program = Program(tmp_path, environ)
    with suppress(SystemExit), SpotwatchRun(program.ck, program.accelerator) as run:
        for number, (batch,) in enumerate(program.loader):
            program.accelerator.backward(program.model(batch).sum())
            if number == 2:
                program.optimizer.step()
                program.optimizer.zero_grad()
            run.step()
            if number == 0:
                with pytest.raises(ConfigError, match="would lose gradients"):
                    program.ck.save(1)
        signal.raise_signal(signal.SIGTERM)
    assert program.ck.exit_code == 75
    assert caplog.text.count("gradients that no step has used") == 1


def test_batches_taken_are_told_of_prepared_loaders_alone(tmp_path: Path, environ: dict[str, str]) -> None:
    """Of another one nothing is known."""
    program = Program(tmp_path, environ)
    with SpotwatchRun(program.ck, program.accelerator) as run:
        assert [run.taken(program.loader) for _ in program.loader] == [1, 2, 3, 4]
        assert run.taken(program.loader) == 0
        with pytest.raises(ConfigError, match="taken: a DataLoader that was not prepared"):
            run.taken(DataLoader(TensorDataset(torch.ones(4, 2))))
