# SPDX-License-Identifier: Apache-2.0
"""What is trained in the benchmarks: a state of GPT's shapes with AdamW, and a loop of many small operations.

Nothing is learned: the loop stands for a trainer that launches kernels, which is what an upload in the same
process slows down first. Imports torch when it is used.
"""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from typing import Any

_OPERATIONS = 100
"""In one iteration; about a tenth of a millisecond."""


@dataclass(frozen=True, slots=True)
class Size:
    """The shape of a GPT: width, layers, rows of both embeddings, and how long its loop is timed."""

    width: int
    layers: int
    rows: int
    idle_seconds: float


SIZES = {
    # 201.4 million parameters: 2,417 MB with AdamW, as in the tutorial.
    "full": Size(1024, 12, 48_064 + 1024, 3.0),
    "small": Size(256, 4, 7_048 + 256, 0.5),
    "tiny": Size(64, 2, 512 + 64, 0.05),
}


class Training:
    """A model, its optimizer after one step, and the loop.

    Args:
        size: of the model.
        seed: of its values.
        stepped: whether the optimizer has its moments, as after the first step of a run.
    """

    def __init__(self, size: Size, *, seed: int, stepped: bool) -> None:
        import torch  # noqa: PLC0415 - whoever only lists the options need not have it

        torch.manual_seed(seed)
        self.model: Any = torch.nn.ParameterDict(
            {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in _shapes(size).items()}
        )
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        if stepped:
            for parameter in self.model.parameters():
                parameter.grad = torch.randn_like(parameter)
                # One at a time, so that the gradients need no room that a measurement would find used.
                self.optimizer.step()
                parameter.grad = None
        self._small: Any = torch.zeros(64)

    @property
    def parameters(self) -> int:
        """Return the number of parameters."""
        return sum(int(parameter.numel()) for parameter in self.model.parameters())

    @property
    def tensors(self) -> int:
        """Return the number of tensors in model and optimizer."""
        return len(self._tensors())

    @property
    def tensor_bytes(self) -> int:
        """Return the bytes of all tensors in model and optimizer."""
        return sum(int(tensor.nbytes) for tensor in self._tensors())

    def iterate(self) -> None:
        """Take one iteration."""
        small = self._small
        for _ in range(_OPERATIONS // 2):
            small.mul_(0.99).add_(0.01)

    def rate(self, seconds: float) -> float:
        """Return the iterations per second of an undisturbed loop, watched for so long."""
        count = 0
        begun = time.perf_counter()
        while (now := time.perf_counter()) < begun + seconds:
            self.iterate()
            count += 1
        return count / (now - begun)

    def digest(self) -> str:
        """Return a checksum of every value in model and optimizer."""
        crc = 0
        for tensor in self._tensors():
            crc = zlib.crc32(memoryview(tensor.detach().numpy()).cast("B"), crc)
        return f"{crc:08x}"

    def _tensors(self) -> list[Any]:
        found = [value for _, value in sorted(self.model.state_dict().items())]
        states = self.optimizer.state_dict()["state"]
        return found + [values[name] for _, values in sorted(states.items()) for name in sorted(values)]


def _shapes(size: Size) -> dict[str, tuple[int, ...]]:
    width = size.width
    # The head shares the embedding's weights, as GPT-2's does.
    shapes: dict[str, tuple[int, ...]] = {"embedding": (size.rows, width)}
    for layer in range(size.layers):
        shapes |= {
            f"{layer:02d}-norm1-weight": (width,),
            f"{layer:02d}-norm1-bias": (width,),
            f"{layer:02d}-qkv-weight": (3 * width, width),
            f"{layer:02d}-qkv-bias": (3 * width,),
            f"{layer:02d}-out-weight": (width, width),
            f"{layer:02d}-out-bias": (width,),
            f"{layer:02d}-norm2-weight": (width,),
            f"{layer:02d}-norm2-bias": (width,),
            f"{layer:02d}-up-weight": (4 * width, width),
            f"{layer:02d}-up-bias": (4 * width,),
            f"{layer:02d}-down-weight": (width, 4 * width),
            f"{layer:02d}-down-bias": (width,),
        }
    return shapes | {"norm-weight": (width,), "norm-bias": (width,)}
