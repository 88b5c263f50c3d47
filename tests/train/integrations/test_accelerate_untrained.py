# SPDX-License-Identifier: Apache-2.0
"""Passes over the training loader that train on nothing, and whole passes that make one step."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, product
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


def measured(life: Loop) -> None:
    """Read the loader once more after each epoch, as for the accuracy in training."""
    (loader,) = life.loaders
    with life.run:
        for _ in range(loader.iteration, 3):
            for batch in loader:
                life.train(batch)
            for batch in loader:
                life.model(batch)


def counted(life: Loop) -> None:
    """Read all first, as for a mean, and only then begin with the epochs."""
    (loader,) = life.loaders
    with life.run:
        assert list(loader)
        for _ in range(loader.iteration, 3):
            for batch in loader:
                life.train(batch)


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
@pytest.mark.parametrize(
    ("reads", "stops"),
    [
        *product((measured, evaluated), ((2, 7), (5, 5))),
        (counted, (2, 7)),  # at an epoch's end it would read nothing
    ],
)
def test_a_pass_that_trains_on_nothing_is_no_epoch(
    tmp_path: Path,
    environ: dict[str, str],
    kind: str,
    reads: Callable[[Loop], None],
    stops: tuple[int, ...],
) -> None:
    """It counts none, and takes nothing of what is left of one."""
    make, options = LOADERS[kind]

    def run(*stops: int) -> list[list[int]]:
        rows = lived(tmp_path / str(stops), environ, lambda _: [make()], reads, stops, **options)
        return [sorted(int(number) for number in row) for row in rows]

    straight, stopped = run(), run(*stops)
    assert len(stopped) == len(straight) == 15
    if reads is measured:
        assert stopped == straight
    for epoch in range(3):
        assert sorted(chain(*stopped[5 * epoch : 5 * epoch + 5])) == list(range(20))


def whole(life: Loop) -> None:
    """Make one step of all batches of an epoch, after its pass."""
    (loader,) = life.loaders
    with life.run as run:
        for _ in range(loader.iteration, 3):
            for batch in loader:
                life.accelerator.backward(life.model(batch).sum())
            life.trained.append([])
            life.optimizer.step()
            life.optimizer.zero_grad()
            life.tell()
            run.step()


def test_a_whole_pass_that_makes_one_step_is_an_epoch(tmp_path: Path, environ: dict[str, str]) -> None:
    """The step is counted after the pass has ended."""
    trained = lived(tmp_path, environ, lambda _: [LOADERS["seedable"][0]()], whole, (1, 1))
    assert len(trained) == 3
