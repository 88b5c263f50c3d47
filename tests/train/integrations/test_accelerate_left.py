# SPDX-License-Identifier: Apache-2.0
"""Loops that leave a pass before its end: where the next life finds it, and where it finds the others."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

for needed in ("torch", "accelerate"):
    pytest.importorskip(needed, reason=f"needs {needed}")

import torch  # noqa: E402 - after the skip
from torch.utils.data import DataLoader  # noqa: E402 - after the skip

from spotwatch.train.integrations.accelerate import SpotwatchRun  # noqa: E402 - after the skip

from .accelerate_loops import Loop, Numbers, lived  # noqa: E402 - after the skip
from .accelerate_world import Program, forget  # noqa: E402 - after the skip

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("handlers_come_back", "only_accelerator")]


def shuffled(length: int) -> DataLoader[torch.Tensor]:
    """Make a loader whose order is drawn for each epoch."""
    return DataLoader(Numbers(length), batch_size=4, shuffle=True)


def zipped(life: Loop) -> None:
    """Take a batch of each loader at once."""
    with life.run:
        for _ in range(life.loaders[0].iteration, 3):
            for batches in zip(*life.loaders, strict=False):
                life.train(*batches)


@pytest.mark.parametrize("lengths", [(20, 20), (20, 28)], ids=str)
@pytest.mark.parametrize("stops", [(2,), (5,), (5, 5), (8,)], ids=str)
def test_loaders_in_a_zip_go_on_together(
    tmp_path: Path, environ: dict[str, str], lengths: tuple[int, int], stops: tuple[int, ...]
) -> None:
    """Told at the last batch of both, no epoch is lost: it was over for the second with the first."""

    def run(name: str, stops: tuple[int, ...]) -> list[list[float]]:
        return lived(tmp_path / name, environ, lambda _: map(shuffled, lengths), zipped, stops)

    straight = run("straight", ())
    assert len(straight) == 15
    assert run("stopped", stops) == straight


def returned(life: Loop) -> None:
    """Leave loop and run by `return` after two batches of the first life."""
    with life.run:
        for _ in range(life.loaders[0].iteration, 3):
            for batch in life.loaders[0]:
                life.train(batch)
                if life.number == 0 and len(life.trained) == 2:
                    return


def broken(life: Loop) -> None:
    """Leave the loop by `break`, before a batch that is not trained on."""
    with life.run:
        for _ in range(life.loaders[0].iteration, 3):
            for batch in life.loaders[0]:
                if life.number == 0 and len(life.trained) == 2:
                    break
                life.train(batch)
            if life.number == 0 and len(life.trained) == 2:
                break


def broken_at_the_end(life: Loop) -> None:
    """Leave the loop by `break` after its last batch."""
    with life.run:
        for _ in range(life.loaders[0].iteration, 3):
            for batch in life.loaders[0]:
                life.train(batch)
                if life.number == 0 and len(life.trained) == 5:
                    break
            if life.number == 0:
                break


@pytest.mark.parametrize("leaves", [returned, broken, broken_at_the_end])
def test_a_loop_that_was_left_goes_on_there(
    tmp_path: Path, environ: dict[str, str], leaves: Callable[[Loop], None]
) -> None:
    """What is saved as the run ends is where it was left, after the last step."""
    trained = lived(tmp_path, environ, lambda _: [shuffled(20)], leaves, (-1,))
    for epoch in range(3):
        taken = [int(number) for batch in trained[5 * epoch : 5 * epoch + 5] for number in batch]
        assert sorted(taken) == list(range(20))
    assert len(trained) == 15


def test_an_evaluation_that_is_left_begins_anew(tmp_path: Path, environ: dict[str, str]) -> None:
    """No step was counted in it, so that the next life evaluates on the same batches."""
    seen: list[list[int]] = []

    def loop(life: Loop) -> None:
        training, evaluation = life.loaders
        with life.run:
            for _ in range(training.iteration, 3):
                for batch in training:
                    life.train(batch)
                taken = [batch for batch, _ in zip(evaluation, range(2), strict=False)]
                seen.append([int(number) for batch in taken for number in batch.flatten().tolist()])

    def make(_: int) -> list[DataLoader[torch.Tensor]]:
        return [shuffled(20), DataLoader(Numbers(20), batch_size=4)]

    lived(tmp_path, environ, make, loop, (7,))
    assert len(seen) == 3
    assert all(numbers[:8] == list(range(8)) for numbers in seen)


def peeked(life: Loop) -> None:
    """Look at a batch before the loop."""
    with life.run:
        next(iter(life.loaders[0]))
        for _ in range(life.loaders[0].iteration, 3):
            for batch in life.loaders[0]:
                life.train(batch)


def peeked_and_kept(life: Loop) -> None:
    """Look at a batch before the loop, and keep the iterator."""
    with life.run:
        batches = iter(life.loaders[0])
        next(batches)
        for _ in range(life.loaders[0].iteration, 3):
            for batch in life.loaders[0]:
                life.train(batch)
        batches.close()


@pytest.mark.parametrize("looks", [peeked, peeked_and_kept])
def test_a_batch_that_was_looked_at_is_trained_on(
    tmp_path: Path, environ: dict[str, str], looks: Callable[[Loop], None]
) -> None:
    """The place in the epoch is the loop's, as long as no step was counted."""

    def run(name: str, stops: tuple[int, ...]) -> list[list[float]]:
        return lived(tmp_path / name, environ, lambda _: [shuffled(20)], looks, stops)

    assert run("stopped", (2, 7)) == run("straight", ())


def limited(life: Loop, told_at: int) -> None:
    """Leave each pass after four batches, and evaluate; told in the evaluation after so many steps."""
    training, evaluation = life.loaders

    def evaluate() -> None:
        for _ in life.run.evaluate(evaluation):
            if life.run.steps == told_at:
                signal.raise_signal(signal.SIGTERM)

    with life.run as run:
        if run.evaluates_first:
            evaluate()
        while run.steps < 12:
            for number, batch in enumerate(training):
                if number == 4:
                    break
                life.train(batch)
            evaluate()


@pytest.mark.parametrize("told_at", [4, 8])
def test_an_evaluation_after_a_pass_that_was_left_has_moved_on(
    tmp_path: Path, environ: dict[str, str], told_at: int
) -> None:
    """Told within it, the next life begins the loader anew after it, as the uninterrupted run does."""

    def trained(*told: int) -> list[list[float]]:
        rows: list[list[float]] = []
        for number, at in enumerate((*told, 0)):
            loaders = [shuffled(28), DataLoader(Numbers(8), batch_size=4)]
            life = Loop(tmp_path / str(told), environ, *loaders, life=number)
            with suppress(SystemExit):
                limited(life, at)
            assert life.ck.exit_code == (75 if at else 0)
            rows += life.trained
        return rows

    assert trained(told_at) == trained()


def test_a_loop_that_was_left_within_accumulation_begins_that_step_anew(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """Its gradients are in no save, so no step is made of what is left of its batches."""

    def live(leaves_after: int) -> int:
        forget()
        program = Program(tmp_path, environ, length=12, gradient_accumulation_steps=2)
        with SpotwatchRun(program.ck, program.accelerator) as run:
            for number, (batch,) in enumerate(program.loader, start=1):
                program.train(batch)
                run.step()
                if number == leaves_after:
                    break
        return run.steps

    assert live(3) == 1
    assert live(0) == 3


@pytest.mark.parametrize("evaluates", [True, False])
@pytest.mark.parametrize("stops", [(2,), (4,), (7,), (8, 2)], ids=str)
def test_a_limit_of_batches_is_counted_on(
    tmp_path: Path, environ: dict[str, str], stops: tuple[int, ...], *, evaluates: bool
) -> None:
    """Where a life is told at the limit, the next one finds that pass left, and begins another."""

    def live(life: Loop) -> None:
        training, evaluation = life.loaders
        with life.run as run:
            while run.steps < 12:
                for number, batch in enumerate(training, start=run.taken(training)):
                    if number == 4:
                        break
                    life.train(batch)
                if evaluates:
                    assert list(run.evaluate(evaluation))

    def trained(*stops: int) -> list[list[float]]:
        def make(_: int) -> list[DataLoader[torch.Tensor]]:
            return [shuffled(28), DataLoader(Numbers(8), batch_size=4)]

        return lived(tmp_path / str(stops), environ, make, live, stops)

    assert trained(*stops) == trained()
