# SPDX-License-Identifier: Apache-2.0
"""Loaders whose parts have random generators of their own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

for needed in ("torch", "accelerate"):
    pytest.importorskip(needed, reason=f"needs {needed}")

import numpy as np  # noqa: E402 - after the skip
import torch  # noqa: E402 - after the skip
from torch.utils.data import ConcatDataset, DataLoader, Sampler, Subset  # noqa: E402 - after the skip

from .accelerate_loops import Loop, Numbers, lived  # noqa: E402 - after the skip

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("handlers_come_back", "only_accelerator")]


class Masked:
    """Makes a batch with noise of its own, from a generator that it makes when it needs one."""

    def __init__(self) -> None:
        self.seed = 5
        self.generator: torch.Generator | None = None

    def create_rng(self) -> None:
        """Make it, as collators of transformers do."""
        self.generator = torch.Generator().manual_seed(self.seed)

    def __call__(self, samples: list[torch.Tensor]) -> torch.Tensor:
        """Return the batch."""
        if self.generator is None:
            self.create_rng()
        batch = torch.stack(samples)
        return batch + torch.rand(batch.shape, generator=self.generator)


class Noisy(Numbers):
    """Numbers with noise of a generator of their own."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.noise = random.Random(7)

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return one."""
        return super().__getitem__(index) + self.noise.random()


class Drawn(Sampler[int]):
    """An order that each epoch draws anew."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.draws = np.random.default_rng(3)

    def __len__(self) -> int:
        """Return how many it draws."""
        return self.length

    def __iter__(self) -> Iterator[int]:
        yield from self.draws.permutation(self.length).tolist()


class Transformed(Numbers):
    """Numbers that an object of a program's own changes."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.transform = SimpleNamespace(draws=np.random.default_rng(4))

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return one."""
        return super().__getitem__(index) + float(self.transform.draws.random())


def noise_with(seed: int) -> Callable[[list[torch.Tensor]], torch.Tensor]:
    """Return a function that makes a batch with noise of a generator that it closes over."""
    generator = torch.Generator().manual_seed(seed)

    def collate(samples: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(samples) + torch.rand((), generator=generator)

    return collate


PARTS: dict[str, Any] = {
    "collate_fn": lambda: DataLoader(Numbers(20), batch_size=4, shuffle=True, collate_fn=Masked()),
    "dataset": lambda: DataLoader(Noisy(20), batch_size=4, shuffle=True),
    "sampler": lambda: DataLoader(Numbers(20), batch_size=4, sampler=Drawn(20)),
    "dataset in a subset": lambda: DataLoader(Subset(Noisy(24), range(2, 22)), batch_size=4, shuffle=True),
    "datasets one after the other": lambda: DataLoader(
        ConcatDataset([Noisy(8), Noisy(12)]), batch_size=4, shuffle=True
    ),
    "transformation": lambda: DataLoader(Transformed(20), batch_size=4, shuffle=True),
    "closure": lambda: DataLoader(Numbers(20), batch_size=4, shuffle=True, collate_fn=noise_with(3)),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("stops", [(2, 7), (5,)], ids=str)
def test_generators_of_a_loaders_parts_go_on(
    tmp_path: Path, environ: dict[str, str], part: str, stops: tuple[int, ...]
) -> None:
    """Their draws are those of the uninterrupted run, from a stop within an epoch and at its end."""

    def run(name: str, stops: tuple[int, ...]) -> list[list[float]]:
        return lived(tmp_path / name, environ, lambda _: [PARTS[part]()], Loop.epochs, stops)

    assert run("stopped", stops) == run("straight", ())
