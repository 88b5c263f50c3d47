# SPDX-License-Identifier: Apache-2.0
"""Which state is of all ranks and which of one, who writes what, and what a rank takes of others."""

from __future__ import annotations

import random
from typing import Any

import pytest

from spotwatch.errors import ConfigError, StoreError
from spotwatch.train.integrations.peft import adapters
from spotwatch.train.ranks import resized, sharing
from spotwatch.train.state.state import State

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
pytestmark = pytest.mark.timeout(120)  # an optimizer imports much at its first step


class Position:
    """An object of the program's own."""

    def state_dict(self) -> dict[str, Any]:
        """Return something with a tensor."""
        return {"at": 3, "table": torch.arange(4)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take nothing."""


def tracked(*, with_state: bool = True) -> State:
    """Return a state with objects of all kinds."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    if with_state:
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step()
    state = State()
    state.track(
        {
            "model": model,
            "optimizer": optimizer,
            "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2),
            "position": Position(),
            "generator": torch.Generator(),
            "dice": random.Random(1),
        }
    )
    return state


@pytest.mark.parametrize("is_first", [True, False])
def test_what_is_of_all_ranks_is_told_by_the_first_alone(*, is_first: bool) -> None:
    """Models, optimizers and schedules are in the first rank's part; the rest is in each rank's own."""
    state = tracked()
    encoded, flat = state.encode(sharded=True)
    split = sharing.split(state.objects, encoded, flat)
    if not is_first:
        split = sharing.without(split, {"model", "optimizer", "scheduler"})
    own = {"position", "generator", "dice"}
    told: Any = split.state
    assert told["objects"].keys() == (state.objects.keys() if is_first else own)
    assert {name.partition("/")[0] for name in split.shared} == {"model", "optimizer"}
    assert {name.partition("/")[0] for name in split.own} == {"position", "generator", "rng"}
    assert split.shared | split.own == flat


def test_a_tensor_of_the_model_in_an_object_of_the_program_stays_the_models() -> None:
    """An object that keeps the model's own parameter does not take it away from the other ranks."""
    state = State()
    model = torch.nn.Linear(2, 2)

    class Keeper(Position):
        def state_dict(self) -> dict[str, Any]:
            return {"weight": model.weight.detach()}

    state.track({"keeper": Keeper(), "model": model})
    encoded, flat = state.encode(sharded=True)
    split = sharing.split(state.objects, encoded, flat)
    assert "keeper/weight" in split.shared
    assert split.own.keys() == {name for name in flat if name.startswith("rng/")}


def test_an_object_may_say_that_it_is_of_all_ranks() -> None:
    """What a class declares to be the same on all ranks is divided like a model; its buffers are rank 0's."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4).requires_grad_(False), torch.nn.BatchNorm1d(4))
    state = State()
    state.track({"model": adapters(model)})
    encoded, flat = state.encode(sharded=True)
    split = sharing.split(state.objects, encoded, flat)
    assert {name.partition("/")[0] for name in split.shared} == {"model"}
    owners = sharing.owners(state.objects, split.shared, dict.fromkeys(state.objects, range(2)))
    assert {name for name, rank in owners.items() if rank == 1} == {"model/tensors/1.weight"}
    told: Any = sharing.without(split, {"model"}).state
    assert not told["objects"]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_the_writing_is_balanced_by_bytes(ranks: int) -> None:
    """No rank writes more than its share and the largest tensor; buffers are the first rank's."""
    state = tracked()
    encoded, flat = state.encode(sharded=True)
    shared = sharing.split(state.objects, encoded, flat).shared
    holders = dict.fromkeys(state.objects, range(ranks))
    owners = sharing.owners(state.objects, shared, holders)
    assert owners.keys() == shared.keys()
    load = [sum(shared[name].nbytes for name in owners if owners[name] == rank) for rank in range(ranks)]
    largest = max(tensor.nbytes for tensor in shared.values())
    assert max(load) <= sum(load) / ranks + largest
    assert {owners[name] for name in owners if "running" in name or "num_batches" in name} == {0}
    assert owners == sharing.owners(state.objects, dict(reversed(shared.items())), holders)


@pytest.mark.parametrize("name", ["FullyShardedDataParallel", "ZeroRedundancyOptimizer"])
def test_what_keeps_hidden_parts_is_refused(name: str) -> None:
    """FSDP1 and ZeRO keep a part on each rank that looks like a whole: the error says what to use."""
    foreign = type(name, (Position,), {})
    with pytest.raises(ConfigError, match=r"model: .*FSDP2"):
        sharing.refuse_foreign({"model": type("Mine", (foreign,), {})(), "other": Position()})
    sharing.refuse_foreign({"other": Position()})


@pytest.mark.parametrize(
    ("states", "contents", "is_refused"),
    [
        ([{"at": 1}, {"at": 1}], [[b"x"], [b"x"]], False),
        ([{"at": 1}], [[b"x"]], False),
        ([{"at": 1}, {"at": 2}], [[], []], True),
        ([{"at": 1}, None], [[], []], True),
        ([{"at": 1}, {"at": 1}], [[b"x"], [b"y"]], True),
    ],
)
def test_what_differed_by_rank_is_not_divided(
    states: list[Any], contents: list[list[bytes]], *, is_refused: bool
) -> None:
    """Equal state goes to everybody; other state is refused with the ways out, unless the user insists."""
    if is_refused:
        with pytest.raises(StoreError, match=r"loader differed on each of the 2 ranks.*allow_resize=True"):
            resized.expect_equal("loader", states, contents, insists=False)
    else:
        resized.expect_equal("loader", states, contents, insists=False)
    resized.expect_equal("loader", states, contents, insists=True)


def test_new_chance_is_the_same_each_time_and_another_on_each_rank() -> None:
    """It follows from the checkpoint and the rank's number, for every kind of generator."""

    def draw(rank: int) -> list[float]:
        torch_ones = {"a": torch.Generator(), "b": torch.Generator()}
        mine: dict[str, Any] = torch_ones | {"c": random.Random(), "d": np.random.default_rng()}
        resized.draw_anew(rank, {"step": 3}, mine)
        return [
            *(random.random(), np.random.rand(), torch.rand(()).item()),
            *(torch.rand((), generator=mine[name]).item() for name in "ab"),
            *(mine["c"].random(), mine["d"].random()),
        ]

    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        assert draw(2) == draw(2)
        everything = draw(2) + draw(3)
        assert len(set(everything)) == len(everything)
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


@pytest.mark.parametrize(("rank", "saved", "source"), [(0, 1, 0), (3, 1, 0), (1, 2, 1), (5, 4, 1)])
def test_whose_state_a_rank_takes(rank: int, saved: int, source: int) -> None:
    """Its own, or when there are more ranks now that of one which is counted round."""
    assert resized.source_of(rank, saved) == source
