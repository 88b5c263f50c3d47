# SPDX-License-Identifier: Apache-2.0
"""What a program draws before its loop: a resumed epoch goes on as if it had not been drawn."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

for needed in ("torch", "accelerate"):
    pytest.importorskip(needed, reason=f"needs {needed}")

import torch  # noqa: E402 - after the skip
from torch.utils.data import DataLoader  # noqa: E402 - after the skip

from .accelerate_loops import Loop, Numbers, lived  # noqa: E402 - after the skip

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("handlers_come_back", "only_accelerator")]


def train(life: Loop, *, seeds: bool = False) -> None:
    """Train on three epochs, with a seed for each if `seeds`."""
    for epoch in range(life.loaders[0].iteration, 3):
        if seeds:
            torch.manual_seed(7 + epoch)
        for batch in life.loaders[0]:
            life.train(batch)


def noise(life: Loop) -> None:
    """Draw noise to look at samples with, in each life."""
    with life.run:
        torch.randn(3)
        train(life)


def baseline(life: Loop) -> None:
    """Evaluate before each life trains."""
    with life.run:
        assert list(life.run.evaluate(life.loaders[1]))
        train(life)


def seeded(life: Loop) -> None:
    """Seed chance at the head of each epoch."""
    with life.run:
        train(life, seeds=True)


def peeked(life: Loop) -> None:
    """Draw, and look at a batch."""
    with life.run:
        torch.randn(3)
        next(iter(life.loaders[0]))
        torch.randn(3)
        train(life)


@pytest.mark.parametrize(
    ("draws", "stops"),
    [
        *product((noise, baseline, seeded), ((2,), (5,), (3, 4), (7,))),
        *product((peeked,), ((2,), (3, 4), (7,))),  # at its end there is no batch to look at
    ],
)
def test_chance_goes_on_where_the_epoch_does(
    tmp_path: Path, environ: dict[str, str], draws: Callable[[Loop], None], stops: tuple[int, ...]
) -> None:
    """In its middle and at its end; what begins an epoch is the program's."""

    def make(_: int) -> list[DataLoader[torch.Tensor]]:
        return [DataLoader(Numbers(20), batch_size=4, shuffle=True), DataLoader(Numbers(8), batch_size=4)]

    def run(*stops: int) -> list[list[float]]:
        return lived(tmp_path / str(stops), environ, make, draws, stops)

    assert run(*stops) == run()
