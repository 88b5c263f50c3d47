# SPDX-License-Identifier: Apache-2.0
"""Whether what is saved of a model is, bit by bit, what it was, without a copy of it.

Callbacks put other weights in for an evaluation in many ways, and some leave no trace but the values. It
knows nothing of evaluations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Sums = dict[str, "torch.Tensor"]


def sums(module: Any) -> Sums:
    """Return one number for each tensor in `state_dict()`, on its device; of a DTensor, for this rank's part.

    Each tensor is read once, as a batch does.
    """
    import torch  # noqa: PLC0415 - trainers bring it; this package does not need it

    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    result = {}
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if not isinstance(value, torch.Tensor):
                continue
            part: torch.Tensor = value.to_local() if hasattr(value, "to_local") else value
            part = torch.view_as_real(part) if part.is_complex() else part
            bits = part.view(words.get(part.element_size(), torch.int64))
            # In its own width, where it may wrap round: several times as fast as in 64 bits.
            result[name] = bits.sum(dtype=bits.dtype)
    return result


def are_same(ones: Sums, others: Sums) -> bool:
    """Tell whether two such collections are of equal tensors."""
    return ones.keys() == others.keys() and all(bool(ones[name] == others[name]) for name in ones)
