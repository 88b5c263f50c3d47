# SPDX-License-Identifier: Apache-2.0
"""Passes over a loader in which no step falls: trained on after them, evaluated on, or only read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

for needed in ("torch", "accelerate", "torchdata"):
    pytest.importorskip(needed, reason=f"needs {needed}")

import torch  # noqa: E402 - after the skip
from torch.utils.data import DataLoader  # noqa: E402 - after the skip

from .accelerate_loops import Counting, Loop, Numbers, Told, lived  # noqa: E402 - after the skip

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.usefixtures("handlers_come_back", "only_accelerator"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 calls it
]

LOADERS: dict[str, tuple[Callable[[], DataLoader[torch.Tensor]], dict[str, Any]]] = {
    "shuffled": (lambda: DataLoader(Numbers(20), batch_size=4, shuffle=True), {}),
    "seedable": (
        lambda: DataLoader(Numbers(20), batch_size=4, shuffle=True),
        {"use_seedable_sampler": True},
    ),
    "told the epoch": (lambda: DataLoader(Told(20), batch_size=4), {}),
    "stateful": (
        lambda: DataLoader(Counting(20), batch_size=4),
        {"use_stateful_dataloader": True},
    ),
}


def gathered(life: Loop) -> None:
    """Read all without gradients, as rollouts do, and then train on it."""
    (loader,) = life.loaders
    with life.run:
        for _ in range(loader.iteration, 3):
            with torch.no_grad():
                read = [batch for batch in loader if life.model(batch).numel()]
            life.train(torch.cat(read))


def asked_anew(life: Loop) -> None:
    """Do the same, until the loader has counted all epochs."""
    (loader,) = life.loaders
    with life.run:
        while loader.iteration < 3 and len(life.trained) < 4:
            life.train(torch.cat(list(loader)))


def stepped(life: Loop, backward: Callable[[Loop, torch.Tensor], object]) -> None:
    """Make one step of the gradients of a whole pass, after it."""
    (loader,) = life.loaders
    with life.run as run:
        for _ in range(loader.iteration, 3):
            read: list[float] = []
            for batch in loader:
                backward(life, life.model(batch).sum())
                read += batch.flatten().tolist()
            life.optimizer.step()
            life.optimizer.zero_grad()
            life.trained.append(read)
            life.tell()
            run.step()


def whole(life: Loop) -> None:
    """Make these gradients by Accelerate."""
    stepped(life, lambda life, loss: life.accelerator.backward(loss))


def by_hand(life: Loop) -> None:
    """Make them by torch's own means."""
    stepped(life, lambda _, loss: torch.autograd.backward(loss))


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("trains", [gathered, asked_anew, whole, by_hand])
def test_a_pass_that_is_trained_on_after_it_is_an_epoch(
    tmp_path: Path, environ: dict[str, str], kind: str, trains: Callable[[Loop], None]
) -> None:
    """It counts at its end, when nobody can know what becomes of it, in a resumed run too."""
    make, options = LOADERS[kind]

    def run(*stops: int) -> list[list[int]]:
        rows = lived(tmp_path / str(stops), environ, lambda _: [make()], trains, stops, **options)
        return [[int(number) for number in row] for row in rows]

    straight, stopped = run(), run(1, 1)
    assert stopped == straight
    assert [sorted(row) for row in straight] == [list(range(20))] * 3
    assert straight[0] != straight[1]


def in_twos(life: Loop) -> None:
    """Train on two batches a step, of two passes where one has an odd number."""
    (loader,) = life.loaders

    def forever() -> Iterator[torch.Tensor]:
        while True:
            yield from loader

    with life.run as run:
        batches = forever()
        while run.steps < 7:
            life.train(torch.cat([next(batches), next(batches)]))


@pytest.mark.parametrize("kind", LOADERS)
def test_what_is_left_of_a_pass_may_be_trained_on_with_the_next(
    tmp_path: Path, environ: dict[str, str], kind: str
) -> None:
    """Told with one batch left, the next life takes it once."""
    make, options = LOADERS[kind]

    def run(*stops: int) -> list[list[int]]:
        rows = lived(tmp_path / str(stops), environ, lambda _: [make()], in_twos, stops, **options)
        return [[int(number) for number in row] for row in rows]

    straight = run()
    assert len(straight) == 7
    assert run(2, 2) == straight


@pytest.mark.parametrize("kind", LOADERS)
def test_a_pass_without_training_goes_as_without_a_run(
    tmp_path: Path, environ: dict[str, str], kind: str
) -> None:
    """An uninterrupted program has the orders and the count of epochs that it had before it used one."""
    make, options = LOADERS[kind]

    def live(*, is_run: bool) -> list[tuple[int, list[list[float]]]]:
        life = Loop(tmp_path, environ, make(), **options)
        (loader,) = life.loaders
        with life.run if is_run else nullcontext():
            return [(loader.iteration, [batch.flatten().tolist() for batch in loader]) for _ in range(4)]

    assert live(is_run=True) == live(is_run=False)


def evaluated(life: Loop) -> None:
    """Evaluate on the training loader first, in each life."""
    (loader,) = life.loaders
    with life.run as run:
        # A stream that keeps its own place begins there.
        assert len(list(run.evaluate(loader))) == 5 or loader.use_stateful_dataloader
        for _ in range(loader.iteration, 3):
            for batch in loader:
                life.train(batch)


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("stops", [(2, 7), (5, 5)])
def test_an_evaluation_over_the_training_loader_is_no_epoch(
    tmp_path: Path, environ: dict[str, str], kind: str, stops: tuple[int, ...]
) -> None:
    """It counts none, and takes nothing of what is left of one."""
    make, options = LOADERS[kind]

    def run(*stops: int) -> list[list[int]]:
        rows = lived(tmp_path / str(stops), environ, lambda _: [make()], evaluated, stops, **options)
        return [[int(number) for number in row] for row in rows]

    straight, stopped = run(), run(*stops)
    assert len(stopped) == len(straight) == 15
    for epoch in range(3):
        assert sorted(chain(*stopped[5 * epoch : 5 * epoch + 5])) == list(range(20))


def read_after(life: Loop) -> None:
    """Read the loader once more after each epoch, as for the accuracy in training."""
    (loader,) = life.loaders
    with life.run:
        for _ in range(loader.iteration, 3):
            for batch in loader:
                life.train(batch)
            assert list(loader)


def read_before(life: Loop) -> None:
    """Read it before the epochs, as for a mean."""
    (loader,) = life.loaders
    with life.run:
        assert list(loader)
        for _ in range(loader.iteration, 3):
            for batch in loader:
                life.train(batch)


@pytest.mark.parametrize(
    ("reads", "is_told"),
    [
        (read_after, True),
        (read_before, True),
        (evaluated, False),
        (gathered, False),
        (whole, False),
        (by_hand, False),
    ],
)
def test_a_pass_that_is_read_alone_is_said_to_count(
    tmp_path: Path,
    environ: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    reads: Callable[[Loop], None],
    is_told: bool,
) -> None:
    """It is said once, and not of what `run.evaluate` reads or what is trained on after its pass."""
    life = Loop(tmp_path, environ, LOADERS["shuffled"][0]())
    reads(life)
    said = [record.getMessage() for record in caplog.records if "counts as an epoch" in record.message]
    assert len(said) == is_told
    assert all("run.evaluate(loader)" in line for line in said)
