# SPDX-License-Identifier: Apache-2.0
"""In which order epochs visit samples, and how ranks share them: the same in every life of a run.

Pure: what follows from a seed and a position. It reads no sample. Importing it does not import torch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Order:
    """In which order each epoch visits the samples.

    Args:
        length: how many samples there are.
        shuffle: another order each epoch.
        seed: of the orders.
    """

    length: int
    shuffle: bool
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Return what the order depends on."""
        return {"length": self.length, "shuffle": self.shuffle, "seed": self.seed}

    def number(self, *what: int) -> int:
        """Return a seed, of 63 bits, for what is numbered so; neighbours get unrelated ones."""
        text = "/".join(str(n) for n in (self.seed, *what))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1

    def of(self, epoch: int) -> torch.Tensor:
        """Return the numbers of the samples, in the order of this epoch."""
        import torch  # noqa: PLC0415 - trainers bring it; this package does not need it

        if not self.shuffle:
            return torch.arange(self.length)
        return torch.randperm(self.length, generator=torch.Generator().manual_seed(self.number(epoch)))


@dataclass(frozen=True, slots=True)
class Cut:
    """How an order is cut into batches, one for each rank at a time.

    Args:
        batch_size: samples a batch.
        rank: whose batches are meant.
        world_size: how many ranks take batches at once.
        drop_last: leave out what does not make a batch for each.
    """

    batch_size: int
    rank: int
    world_size: int
    drop_last: bool

    @property
    def samples(self) -> int:
        """Return how many samples all ranks take at once."""
        return self.batch_size * self.world_size

    def begins(self, first: int, length: int) -> range:
        """Return the sample that each batch begins at, counted over all ranks."""
        return range(first, length - self.samples + 1 if self.drop_last else length, self.samples)

    def of(self, order: torch.Tensor, begin: int) -> list[int]:
        """Return the samples of this rank's batch."""
        taken: list[int] = order[begin : begin + self.samples].tolist()
        # Ranks must not differ in their number of steps, nor weigh their gradients differently.
        missing = -len(taken) % self.world_size
        taken += [int(order[n % len(order)]) for n in range(missing)]
        each = len(taken) // self.world_size
        return taken[self.rank * each : (self.rank + 1) * each]
