# SPDX-License-Identifier: Apache-2.0
"""What ranks compare at a save: buffers whole, a sample of all else; found, stored by rank or said once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from spotwatch.train.ranks.alike import Alike
from spotwatch.train.state.state import State

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(120)

_DTYPES = ("float64", "bfloat16", "float8_e4m3fn", "complex64", "int64", "uint16", "bool")
Change = Callable[[Any], object]


def new_model() -> Any:
    """Return a model with parameters and buffers of several kinds."""
    torch.manual_seed(3)
    model = torch.nn.Module()
    model.conv = torch.nn.Conv2d(3, 40, 3)
    model.one = torch.nn.Parameter(torch.ones(()))
    for dtype in _DTYPES:
        model.register_buffer(f"a_{dtype}", torch.arange(6).reshape(2, 3).to(getattr(torch, dtype)))
    model.register_buffer("none", torch.zeros(0, 4))
    return model


class Rank:
    """What one rank tracks, and what it knows of the others."""

    def __init__(self, name: str = "model") -> None:
        self.model = new_model()
        self.state = State()
        self.state.track({name: self.model})
        self.alike = Alike()

    @property
    def shared(self) -> dict[str, Any]:
        """Return the tensors of the model."""
        _, flat = self.state.encode(sharded=True)
        return {name: tensor for name, tensor in flat.items() if not name.startswith("rng/")}

    def look(self) -> dict[str, Any]:
        """Return what it tells at a save."""
        return self.alike.look(self.state.objects, self.shared)


def save(*ranks: Rank) -> bool:
    """Let ranks compare, as a save does; return whether more buffers are stored by rank than before."""
    differ = [rank.alike.differ([one.look() for one in ranks]) for rank in ranks]
    assert all(names == differ[0] for names in differ)
    if not differ[0]:
        return False
    sums = [rank.alike.sums(differ[0], rank.shared) for rank in ranks]
    more = [rank.alike.learn(sums, speaks=at == 0) for at, rank in enumerate(ranks)]
    assert all(rank.alike.by_rank == ranks[0].alike.by_rank for rank in ranks)
    return more[0]


def test_equal_ranks_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Neither does a memory format of one rank's own, nor what only one rank tracks."""
    ranks = [Rank(), Rank(), Rank("stage2")]
    ranks[1].model.to(memory_format=torch.channels_last)
    assert not ranks[1].model.conv.weight.is_contiguous()
    with caplog.at_level(logging.WARNING):
        assert not save(*ranks)
    assert not ranks[0].alike.by_rank
    assert not caplog.records


@pytest.mark.parametrize("dtype", _DTYPES)
def test_a_buffer_that_differs_in_one_element_is_of_each_rank_from_then_on(dtype: str) -> None:
    """It is found once, and stays by rank when it is equal again; another one comes to it."""
    ranks = [Rank(), Rank(), Rank()]
    buffer = getattr(ranks[2].model, f"a_{dtype}")
    buffer[1, 2] = 0
    assert save(*ranks)
    assert ranks[0].alike.by_rank == {f"model/a_{dtype}"}
    assert not save(*ranks)
    ranks[2].model.load_state_dict(ranks[0].model.state_dict())
    assert not save(*ranks)
    other = "int64" if dtype != "int64" else "uint16"
    getattr(ranks[1].model, f"a_{other}").zero_()
    assert save(*ranks)
    assert ranks[0].alike.by_rank == {f"model/a_{dtype}", f"model/a_{other}"}


def test_a_large_buffer_is_compared_to_its_end() -> None:
    """More than is copied at a time: its last element counts as its first."""
    ranks = [Rank(), Rank()]
    for rank in ranks:
        rank.model.register_buffer("table", torch.zeros(5 * 2**20))
    ranks[1].model.table[-1] = 1
    assert save(*ranks)
    assert ranks[0].alike.by_rank == {"model/table"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda net: net.conv.weight.data.mul_(2), "model/conv.weight;"),
        (
            lambda net: net.to(memory_format=torch.channels_last).conv.weight.data.mul_(2),
            "model/conv.weight;",
        ),
        (lambda net: net.one.data.add_(1), "model/one;"),
        (
            lambda net: [p.data.add_(1) for p in net.parameters()],
            "model/conv.bias, model/conv.weight, model/one;",
        ),
    ],
)
def test_a_model_that_differs_is_said_once_by_one_rank(
    change: Change, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the tensors; nothing of them is stored by rank."""
    ranks = [Rank(), Rank()]
    change(ranks[1].model)
    with caplog.at_level(logging.WARNING):
        assert not save(*ranks)
        assert not save(*ranks)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"the model differs by rank: {named}")
    assert not ranks[0].alike.by_rank
