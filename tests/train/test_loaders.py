# SPDX-License-Identifier: Apache-2.0
"""Loaders that are saved in the middle of an epoch, with real workers: the same batches, the same losses."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from spotwatch.errors import ConfigError, StoreError
from spotwatch.train.loaders import ResumableLoader, _Seeded
from spotwatch.train.sample_order import Cut, Order
from spotwatch.train.state import encoding, rng, tensors

from .loader_world import Noisy, Plain, Trainer, make_loader

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.timeout(120),
    # Python 3.12 warns of what DataLoader does by default.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata 0.11, torch 2.13
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


# An epoch has six batches.
@pytest.mark.parametrize(
    ("workers", "steps"),
    [(0, 4), (0, 6), (0, 9), (2, 4), (2, 6), (2, 9)],
)
def test_losses_go_on_bit_for_bit(workers: int, steps: int) -> None:
    """Saved within an epoch, at its end and in the second one, and saved again after the resume."""
    first = Trainer(make_loader(workers))
    first.losses(steps)
    saved = first.captured()
    wanted = first.losses(14)
    second = Trainer(make_loader(workers)).resumed(saved)
    assert second.losses(5) == wanted[:5]
    saved = second.captured()
    third = Trainer(make_loader(workers)).resumed(saved)
    assert third.losses(9) == wanted[5:]


def test_persistent_workers_go_on_too() -> None:
    """Workers that live from epoch to epoch give the same batches."""
    first = Trainer(make_loader(2))
    first.losses(8)
    saved = first.captured()
    wanted = first.losses(12)
    second = Trainer(make_loader(2, persistent_workers=True)).resumed(saved)
    assert second.losses(12) == wanted


@pytest.mark.parametrize("workers", [0, 2])
def test_the_stateful_loader_of_torchdata_goes_on(workers: int) -> None:
    """What it draws when it begins to iterate is drawn before the random state is back, not after."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make() -> Any:
        return stateful.StatefulDataLoader(Plain2(), batch_size=4, shuffle=True, num_workers=workers)

    first = Trainer(make())
    first.losses(9)
    saved = first.captured()
    wanted = first.losses(12)
    second = Trainer(make()).resumed(saved)
    assert second.losses(12) == wanted


class Plain2(Noisy):
    """Samples without luck: how torchdata's workers go on drawing is theirs."""

    def __getitem__(self, number: int) -> Any:
        return torch.tensor([float(number), 1.0, 1.0])


def test_what_was_taken_counts_and_not_what_was_read() -> None:
    """Workers run ahead; the position is the training loop's."""
    loader = ResumableLoader(Plain(), 4, num_workers=2, prefetch_factor=4)
    batches = iter(loader)
    for taken in range(1, 4):
        next(batches)
        assert loader.state_dict()["samples"] == 4 * taken


def test_skipped_samples_are_not_read() -> None:
    """To go on at the end of a long epoch costs nothing."""
    dataset = Plain()
    first = ResumableLoader(Plain(), 4, shuffle=True)
    taken = [int(n) for batch in itertools.islice(first, 4) for n in batch]
    loader = ResumableLoader(dataset, 4, shuffle=True)
    loader.load_state_dict(first.state_dict())
    rest = [int(n) for batch in loader for n in batch]
    assert dataset.read == rest
    assert sorted(taken + rest) == list(range(22))


def test_epochs_differ_and_repeat_in_another_life() -> None:
    """Each epoch has an order of its own, which follows from the seed alone."""

    def epochs(seed: int) -> list[list[int]]:
        loader = ResumableLoader(Plain(), 4, shuffle=True, seed=seed)
        assert len(loader) == 6
        return [[int(n) for batch in loader for n in batch] for _ in range(3)]

    first = epochs(1)
    assert first == epochs(1)
    assert len({tuple(order) for order in first + epochs(2)}) == 6
    assert all(sorted(order) == list(range(22)) for order in first)


def test_iterating_draws_nothing_from_the_global_state() -> None:
    """A resume begins a pass where the uninterrupted run does not; the random state must not show it."""
    loader = ResumableLoader(Plain(), 4, shuffle=True, num_workers=2)
    before = encoding.encode(rng.capture(), "rng", _as_bytes)
    for _ in loader:
        pass
    assert encoding.encode(rng.capture(), "rng", _as_bytes) == before


def _as_bytes(value: Any, _path: str) -> str | None:
    return tensors.raw_bytes(value).hex() if tensors.is_tensor(value) else None


def test_workers_luck_is_their_own_in_each_batch() -> None:
    """No two samples of two epochs get the same random numbers, whatever worker makes them."""
    loader = make_loader(2)
    luck = [float(sample[1]) for _ in range(2) for batch in loader for sample in batch]
    assert len(set(luck)) == len(luck) == 44


class Pids(Noisy):
    """Samples that say which process read them."""

    def __getitem__(self, number: int) -> int:
        return os.getpid()


def test_workers_are_shielded_from_the_signal_that_ends_the_trainer() -> None:
    """SIGTERM to the process group must not break the loader before the last save."""
    batches = iter(ResumableLoader(Pids(400), 4, num_workers=2))
    workers = {int(pid) for _ in range(2) for pid in next(batches)}
    assert len(workers) == 2
    subprocess.run(["kill", *map(str, workers)], check=True)  # not by us: the trainer itself would be obeyed
    assert {int(pid) for batch in batches for pid in batch} == workers


def test_the_users_own_worker_init_is_called() -> None:
    """The shield comes with it and not instead of it."""
    loader = ResumableLoader(Named(), 4, num_workers=1, worker_init_fn=_name_worker)
    assert {int(n) for batch in loader for n in batch} == {41}


def _name_worker(worker_id: int) -> None:
    os.environ["SPOTWATCH_TEST_WORKER"] = str(41 + worker_id)


class Named(Noisy):
    """Samples that say what the worker was told."""

    def __getitem__(self, number: int) -> int:
        return int(os.environ["SPOTWATCH_TEST_WORKER"])


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("length", [22, 24, 25, 29])
def test_ranks_share_an_epoch_evenly(length: int, drop_last: bool) -> None:
    """Each rank has as many batches, of the same sizes; together they see every sample or whole batches."""
    ranks = [
        [
            batch.tolist()
            for batch in ResumableLoader(
                Plain(length), 4, shuffle=True, rank=rank, world_size=3, drop_last=drop_last
            )
        ]
        for rank in range(3)
    ]
    assert len({tuple(len(batch) for batch in batches) for batches in ranks}) == 1
    seen = [n for batches in ranks for batch in batches for n in batch]
    if drop_last:
        assert len(seen) == len(set(seen)) == length // 12 * 12
    else:
        assert set(seen) == set(range(length))
        assert len(seen) - length == -length % 3


def test_another_number_of_ranks_goes_on_at_the_same_sample() -> None:
    """Saved by two ranks, all of whose states are equal, the epoch is finished by one with larger batches."""
    ranks = [ResumableLoader(Plain(), 2, shuffle=True, rank=r, world_size=2) for r in range(2)]
    taken = [int(n) for rank in ranks for batch in itertools.islice(rank, 3) for n in batch]
    assert ranks[0].state_dict() == ranks[1].state_dict()
    alone = ResumableLoader(Plain(), 5, shuffle=True)
    alone.load_state_dict(ranks[0].state_dict())
    rest = [int(n) for batch in alone for n in batch]
    assert sorted(taken + rest) == list(range(22))


def test_another_order_is_refused() -> None:
    """Going on at a position of another order would skip some samples and show others twice."""
    saved = Trainer(make_loader(0)).captured()
    other = Trainer(ResumableLoader(Noisy(23), 4, shuffle=True, seed=7))
    with pytest.raises(StoreError, match=r"loader does not fit.*'length': 22.*'length': 23"):
        other.state.restore(*saved)


def test_a_pass_that_another_has_overtaken_ends_with_an_error() -> None:
    """Two loops over one loader would each lose batches to the other."""
    loader = ResumableLoader(Plain(), 4)
    old = iter(loader)
    next(old)
    new = iter(loader)
    assert next(new).tolist() == [4, 5, 6, 7]
    with pytest.raises(RuntimeError, match="another one was begun"):
        next(old)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(RuntimeError, match="a state was loaded"):
        next(new)


def test_a_state_at_the_very_end_of_an_epoch_leaves_nothing_of_it() -> None:
    """Saved after the last batch, before the epoch's own end: what comes at its end comes after a resume."""
    first = ResumableLoader(Plain(), 4)
    list(itertools.islice(first, 6))
    second = ResumableLoader(Plain(), 4)
    second.load_state_dict(first.state_dict())
    assert list(second) == []
    assert second.epoch == 1
    assert len(list(second)) == 6


def test_forever_crosses_epochs() -> None:
    """A loop that counts steps needs no loop over epochs."""
    loader = ResumableLoader(Plain(), 4, shuffle=True)
    assert sum(len(batch) for batch in itertools.islice(loader.forever(), 13)) == 22 + 22 + 4
    assert loader.epoch == 2
    assert loader.samples == 4


def test_a_dataset_that_reads_whole_batches_is_asked_for_them() -> None:
    """`__getitems__` is used where there is one, as DataLoader does."""

    class Together(Plain):
        def __getitems__(self, numbers: list[int]) -> list[int]:
            self.read.append(-len(numbers))
            return numbers

    dataset = Together()
    assert [len(batch) for batch in ResumableLoader(dataset, 9)] == [9, 9, 4]
    assert dataset.read == [-9, -9, -4]


def test_what_goes_to_spawned_workers_can_be_pickled() -> None:
    """Where workers are spawned and not forked, dataset and shield travel."""
    loader = ResumableLoader(Plain(), 4, num_workers=1, worker_init_fn=_name_worker)
    pickle.dumps((_Seeded(Plain()), loader._loader.worker_init_fn))


class Stream:
    """A dataset without numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(
    ("dataset", "options", "reason"),
    [
        (Stream(), {}, "Stream has no length.*StatefulDataLoader"),
        (Plain(), {"batch_size": 0}, "batch_size 0"),
        (Plain(), {"batch_size": None}, "batch_size None"),
        (Plain(), {"rank": 2, "world_size": 2}, "rank 2 of 2"),
        (Plain(), {"sampler": [1]}, "sampler cannot be given: the order comes from"),
        (Plain(), {"generator": None}, "generator cannot be given: give seed"),
        (Plain(3), {"batch_size": 4, "drop_last": True}, "3 samples make no batch of 4"),
        (Plain(0), {}, "0 samples make no batch"),
    ],
)
def test_what_cannot_be_resumed_is_refused(dataset: Any, options: dict[str, Any], reason: str) -> None:
    """Each refusal names the argument and says what to use."""
    with pytest.raises(ConfigError, match=reason):
        ResumableLoader(dataset, **options)


def test_orders_and_cuts_by_hand() -> None:
    """A small case written out: five samples, two ranks, two each."""
    order = Order(5, shuffle=False, seed=0).of(3)
    assert order.tolist() == [0, 1, 2, 3, 4]
    cuts = [Cut(2, rank, 2, drop_last=False) for rank in range(2)]
    assert list(cuts[0].begins(0, 5)) == [0, 4]
    assert [cut.of(order, 0) for cut in cuts] == [[0, 1], [2, 3]]
    assert [cut.of(order, 4) for cut in cuts] == [[4], [0]]
    assert list(Cut(2, 0, 2, drop_last=True).begins(0, 5)) == [0]


def test_seeds_of_neighbours_are_unrelated() -> None:
    """Epoch 1 of seed 0 is not epoch 0 of seed 1, as it is where the two are added."""
    assert Order(9, shuffle=True, seed=0).number(1) != Order(9, shuffle=True, seed=1).number(0)
    assert 0 <= Order(9, shuffle=True, seed=-5).number(1, 2) < 2**63
