# SPDX-License-Identifier: Apache-2.0
"""The sums that tell whether other weights were put in: no way to put some in leaves them as they were."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from spotwatch.train.integrations.lightning_weights import are_same, sums

CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "doubled": lambda weights: weights * 2,
    "halved": lambda weights: weights / 2,
    "negated": lambda weights: -weights,
    "two negated": lambda weights: torch.cat([-weights[:2], weights[2:]]),
    "turned round": lambda weights: weights.flip(0),
    "two changed over": lambda weights: torch.cat([weights[1:2], weights[:1], weights[2:]]),
    "blocks changed over": lambda weights: weights.roll(2**16),
    "the last one": lambda weights: torch.cat([weights[:-1], weights[-1:] * 1.01]),
}


def model_of(weights: torch.Tensor) -> torch.nn.Module:
    """Return a model whose state is one tensor."""
    model = torch.nn.Module()
    model.register_buffer("weights", weights)
    return model


@pytest.mark.parametrize("length", [2**17, 2**17 + 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("change", CHANGES)
def test_sums_are_other_ones_where_weights_are(change: str, dtype: torch.dtype, length: int) -> None:
    """Also where only signs, exponents or places differ; in whole words of 32 bits and else."""
    weights = torch.randn(length, generator=torch.Generator().manual_seed(1)).to(dtype)
    before = sums(model_of(weights))
    assert are_same(before, sums(model_of(weights.clone())))
    assert not are_same(before, sums(model_of(CHANGES[change](weights))))


def test_sums_are_of_values_wherever_they_lie() -> None:
    """Parts of larger tensors, turned ones, empty ones and single numbers are taken as they are."""
    weights = torch.arange(12, dtype=torch.bfloat16)
    pairs = [
        (weights[1:], weights[1:].clone()),
        (weights.view(3, 4).t(), weights.view(3, 4).t().contiguous()),
        (weights[1:9], weights[1:9].clone()),
        (weights[:0], weights[:0].clone()),
        (weights[3], torch.tensor(3, dtype=torch.bfloat16)),
        (torch.tensor([1 + 2j]), torch.tensor([1 + 2j])),
        (weights > 4, weights > 4),
    ]
    for one, other in pairs:
        assert are_same(sums(model_of(one)), sums(model_of(other)))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_what_is_sparse_or_quantized_is_passed_over() -> None:
    """To view it as words would be an error, or the end of the process."""
    weights = torch.ones(4, 4)
    others = [weights.to_sparse(), torch.quantize_per_tensor(weights, 0.1, 0, torch.qint8)]
    assert [sums(model_of(one)) for one in others] == [{}, {}]
