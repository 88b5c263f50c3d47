# SPDX-License-Identifier: Apache-2.0
"""Which checkpoint several ranks take: whatever one of them meets, all do the same."""

from __future__ import annotations

import threading

import pytest

from spotwatch.errors import CheckpointCorrupt, ConfigError, RunTaken, StoreError
from spotwatch.train.consensus import StoppedElsewhere
from spotwatch.train.parts import crc32
from spotwatch.train.registry.manifest import Manifest
from spotwatch.train.registry.registry import RANK_FILE
from spotwatch.train.registry.resume import Resume

from .faulty import FaultyStore, publish, registry
from .searching import Rank, dir_of, flip, marked, nothing, point, saved_run
from .seats import Seat, play


@pytest.fixture
def store() -> FaultyStore:
    """Return the store of a run of two ranks that saved at 10, 20 and 30."""
    return saved_run()


def test_all_ranks_take_what_latest_names(store: FaultyStore) -> None:
    """Each its own file; generation, writer and parent are the same on all, and LATEST is theirs."""
    ranks: list[Rank] = []

    def act(seat: Seat) -> int | None:
        rank = Rank(store, seat)
        ranks.append(rank)
        return rank.load()

    assert play(2, act) == [30, 30]
    latest = registry(store).latest()
    assert latest is not None
    assert {(rank.registry.generation, rank.registry.writer) for rank in ranks} == {(2, latest.writer)}
    assert {rank.registry.parent for rank in ranks} == {latest.dir}
    assert latest.generation == 2


def test_only_the_first_rank_lists_and_reads_the_pointer(store: FaultyStore) -> None:
    """Of a thousand ranks one asks what there is; the others read the manifest that it names."""
    assert play(2, lambda seat: Rank(store, seat).load()) == [30, 30]
    alone = FaultyStore()
    alone.objects.update(store.objects)
    assert Rank(alone).load() == 30
    for deed in ("list", "read LATEST"):
        assert sum(one.startswith(deed) for one in store.deeds) == sum(
            one.startswith(deed) for one in alone.deeds
        )


@pytest.mark.parametrize("rank", [0, 1])
def test_damage_to_one_ranks_file_sends_all_to_the_next(store: FaultyStore, rank: int) -> None:
    """Whoever finds it: all go on from the one before, and it is marked once."""
    bad = dir_of(store, 30)
    flip(store, 30, rank)
    ranks: list[Rank] = []

    def act(seat: Seat) -> int | None:
        ranks.append(Rank(store, seat))
        return ranks[-1].load()

    assert play(2, act) == [20, 20]
    assert marked(store) == {bad}
    assert store.deeds.count("put quarantine.json") == 1
    for one in ranks:
        assert len(one.search.problems) == 1
        assert bad in one.search.problems[0]
        assert one.registry.bad == {bad}


def test_a_missing_shard_sends_all_to_the_next(store: FaultyStore) -> None:
    """The listing shows it; nothing is downloaded of a checkpoint that is not whole."""
    store.delete(f"{dir_of(store, 30)}/rank-00001.safetensors")
    assert play(2, lambda seat: Rank(store, seat).load()) == [20, 20]
    assert store.deeds.count("read_into rank-00000.safetensors") == 4


@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_that_refuses_one_rank_ends_it_for_all(store: FaultyStore, rank: int) -> None:
    """Not being able to read is not a reason to go back: no rank takes an older one, none marks anything."""
    store.fail_at = f"read_into {RANK_FILE.format(rank)}"
    results = play(2, lambda seat: Rank(store, seat).load(allow_fresh=True))
    for result in results:
        assert isinstance(result, StoreError)
        assert not isinstance(result, CheckpointCorrupt)
        assert "403 Forbidden" in str(result)
    assert marked(store) == set()


@pytest.mark.parametrize("deed", ["read LATEST", "list", "read manifest.json"])
def test_a_survey_that_fails_ends_it_for_all(store: FaultyStore, deed: str) -> None:
    """Nor is an empty answer made of a refused one, even for who insists on a fresh start."""
    store.fail_at = deed
    results = play(2, lambda seat: Rank(store, seat).load(allow_fresh=True))
    assert all(isinstance(result, StoreError) and "403" in str(result) for result in results)


class _LeaveError(Exception):
    """A stop was ordered."""


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("when", ["at once", "while downloading"])
def test_a_stop_on_one_rank_is_a_stop_on_all(rank: int, when: str) -> None:
    """That rank raises what its `between` raised; the others leave with it, and nothing is marked."""
    store = FaultyStore()
    life = registry(store)
    publish(life, 10, ranks=3)
    asked = threading.Event()
    if when == "at once":
        asked.set()
    store.before = lambda deed: asked.set() if deed.startswith("read_into") else None

    def act(seat: Seat) -> int | None:
        def between() -> None:
            if seat.rank == rank and asked.is_set():
                raise _LeaveError

        return Rank(store, seat, between).load()

    results = play(3, act)
    assert [type(result) for result in results] == [
        _LeaveError if seat == rank else StoppedElsewhere for seat in range(3)
    ]
    assert marked(store) == set()


def test_a_stop_outweighs_damage(store: FaultyStore) -> None:
    """The rank that found damage does not go on to the next checkpoint alone while the other leaves."""
    flip(store, 30, 1)
    found = threading.Event()

    def act(seat: Seat) -> int | None:
        def between() -> None:
            if seat.rank == 0 and found.is_set():
                raise _LeaveError

        rank = Rank(store, seat, between)

        def fetch(manifest: Manifest) -> None:
            if seat.rank == 0:
                assert found.wait(15)
                between()
            try:
                rank.fetch(manifest)
            finally:
                found.set()

        loaded = rank.search.load(fetch, allow_fresh=False)
        return None if loaded is None else loaded.step

    results = play(2, act)
    assert [type(result) for result in results] == [_LeaveError, StoppedElsewhere]


def test_a_rank_that_cannot_restore_ends_it_for_all(store: FaultyStore) -> None:
    """Sound, but of another model: no older one is tried, and nothing is marked."""

    def act(seat: Seat) -> int | None:
        rank = Rank(store, seat)

        def fetch(manifest: Manifest) -> None:
            rank.fetch(manifest)
            if seat.rank == 1:
                raise ConfigError("the checkpoint's model does not fit")

        loaded = rank.search.load(fetch, allow_fresh=False)
        return None if loaded is None else loaded.step

    first, second = play(2, act)
    assert isinstance(first, StoreError)
    assert "rank 1: the checkpoint's model does not fit" in str(first)
    assert isinstance(second, ConfigError)
    assert marked(store) == set()


def test_a_run_of_a_later_life_is_not_claimed_back(store: FaultyStore) -> None:
    """Whoever comes with a lower generation, and a lease that says so, leaves; so do its other ranks."""
    point(store, dir_of(store, 30), generation=9)

    def act(seat: Seat) -> int | None:
        rank = Rank(store, seat)
        rank.search = Resume(rank.registry, seat, 0.0, nothing, raise_to=lambda seen: 3)
        return rank.load()

    results = play(2, act)
    assert [type(result) for result in results] == [RunTaken, RunTaken]


def test_nothing_that_verifies_is_a_refusal_on_all_ranks(store: FaultyStore) -> None:
    """With every reason; who insists begins at nothing, and outranks what lies there."""
    for step in (10, 20, 30):
        flip(store, step, 1)
    results = play(2, lambda seat: Rank(store, seat).load())
    for result in results:
        assert isinstance(result, StoreError)
        assert str(result).count("checksum") == 3
        assert "SPOTWATCH_ALLOW_FRESH=1" in str(result)
    assert len(marked(store)) == 3
    ranks: list[Rank] = []

    def act(seat: Seat) -> int | None:
        ranks.append(Rank(store, seat))
        return ranks[-1].load(allow_fresh=True)

    assert play(2, act) == [None, None]
    first = next(rank for rank in ranks if rank.world.is_first)
    publish(first.registry, 1, ranks=2)
    assert play(2, lambda seat: Rank(store, seat).load()) == [1, 1]


def test_a_checkpoint_of_a_later_version_is_not_gone_behind(store: FaultyStore) -> None:
    """An older program neither loses the work of a newer one nor marks it as damaged: it refuses to start."""
    directory = dir_of(store, 30)
    key = f"{directory}/manifest.json"
    later = store.objects[key].replace(b'"version":1', b'"version":2', 1)
    zero = later[:10] + b"00000000" + later[18:]
    store.objects[key] = zero[:10] + crc32(zero).encode() + zero[18:]
    point(store, directory)
    first, second = play(2, lambda seat: Rank(store, seat).load(allow_fresh=True))
    assert isinstance(first, ConfigError)
    assert isinstance(second, StoreError)
    assert "a later spotwatch" in str(first)
    assert "a later spotwatch" in str(second)
    assert marked(store) == set()
    assert Rank(store).search.newest_manifest() is None
