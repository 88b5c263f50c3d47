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

_WORDS = {"cpu": 2**16}
"""How many are mixed at once, by kind of device: as many as its cache takes."""

_MANY_WORDS = 2**24
"""On others, where each call costs, and 64 MiB are little."""

_STRIDE, _FACTOR = -1640531527, 739998925
"""Odd numbers of 32 bits, so that no word is lost by them."""


def sums(module: Any) -> Sums:
    """Return one number for each tensor in `state_dict()`, on its device; of a DTensor, for this rank's part.

    Each tensor is read once, as a batch does. Sparse and quantized ones are passed over: their memory is not
    laid out as their values are, and to view it as words ends the process.
    """
    import torch  # noqa: PLC0415 - trainers bring it; this package does not need it

    result = {}
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if isinstance(value, torch.Tensor):
                part: torch.Tensor = value.to_local() if hasattr(value, "to_local") else value
                if part.layout is torch.strided and not part.is_quantized:
                    result[name] = _sum(
                        torch.view_as_real(part.resolve_conj()) if part.is_complex() else part
                    )
    return result


def _sum(part: torch.Tensor) -> torch.Tensor:
    """Return the sum of the mixed words of 32 bits, which may wrap round.

    Words are mixed with where they are, so that it is another one also where values change places, signs, or
    all by one factor: sums of floats' bits alone are blind to some of that.
    """
    import torch  # noqa: PLC0415 - as above

    octets = part.contiguous().view(-1).view(torch.uint8)
    if octets.storage_offset() % 4:
        octets = octets.clone()  # words lie at whole places, and a sum is the same wherever values lie
    words = octets if octets.numel() % 4 else octets.view(torch.int32)
    total = torch.zeros((), dtype=torch.int32, device=words.device)
    size = min(words.numel(), _WORDS.get(words.device.type, _MANY_WORDS))
    places = torch.arange(size, dtype=torch.int32, device=words.device).mul_(_STRIDE)
    for n, some in enumerate(torch.split(words, size) if size else ()):
        mixed = places[: some.numel()] + some
        mixed.bitwise_xor_(mixed >> 15).mul_(_FACTOR)
        mixed.bitwise_xor_(mixed >> 13)
        total += mixed.sum(dtype=torch.int32) * (2 * n + 1)
    return total


def are_same(ones: Sums, others: Sums) -> bool:
    """Tell whether two such collections are of equal tensors."""
    return ones.keys() == others.keys() and all(bool(ones[name] == others[name]) for name in ones)
