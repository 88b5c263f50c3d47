# SPDX-License-Identifier: Apache-2.0
"""Which checkpoint is taken, by one rank and by several: the failure table without a trainer around it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from spotwatch.errors import CheckpointCorrupt, ConfigError, RunTaken, StoreError
from spotwatch.testing import MemoryStore
from spotwatch.train import download, schedule
from spotwatch.train.consensus import StoppedElsewhere
from spotwatch.train.manifest import LATEST, File, Latest, Manifest
from spotwatch.train.parts import crc32
from spotwatch.train.registry import RANK_FILE, Registry
from spotwatch.train.resume import Resume
from spotwatch.train.store import Store
from spotwatch.train.world import Alone

from .faulty import BODY, FaultyStore, publish, registry
from .seats import Seat, play


def _nothing() -> None:
    pass


class Rank:
    """One rank that starts, and what it has learned.

    Args:
        store: of the run.
        world: the rank's view of it.
        between: raises when a stop was ordered.
        patience_seconds: how long the store is asked again.
    """

    def __init__(
        self,
        store: Store,
        world: Alone | None = None,
        between: Callable[[], None] = _nothing,
        patience_seconds: float = 0.0,
    ) -> None:
        self.registry = Registry(store, "run")
        self.world = world or Alone()
        self.between = between
        self.patience_seconds = patience_seconds
        self.search = Resume(self.registry, self.world, patience_seconds, between)
        self.fetched: list[int] = []
        self.body = bytearray()

    def fetch(self, manifest: Manifest) -> None:
        """Download the own file, as the trainer does."""
        self.fetched.append(manifest.step)
        file = manifest.files[self.world.rank]
        self.body = bytearray(file.size_bytes)
        download.fetch(
            self.registry.store,
            f"{manifest.dir}/{file.name}",
            file,
            memoryview(self.body),
            self.between,
            patience_seconds=self.patience_seconds,
        )

    def load(self, *, allow_fresh: bool = False) -> int | None:
        """Resume, and return the step."""
        manifest = self.search.load(self.fetch, allow_fresh=allow_fresh)
        if manifest is None:
            return None
        assert bytes(self.body) == b"%d %d " % (self.world.rank, manifest.step) + BODY
        return manifest.step


@pytest.fixture
def store() -> FaultyStore:
    """Return the store of a run of two ranks that saved at 10, 20 and 30."""
    made = FaultyStore()
    life = registry(made)
    for step in (10, 20, 30):
        publish(life, step, ranks=2)
    made.deeds.clear()
    return made


def _dir(store: MemoryStore, step: int) -> str:
    return next(key.partition("/")[0] for key in store.objects if key.startswith(f"step-{step:09d}-"))


def _flip(store: MemoryStore, step: int, rank: int) -> None:
    key = f"{_dir(store, step)}/{RANK_FILE.format(rank)}"
    body = bytearray(store.objects[key])
    body[100] ^= 4
    store.objects[key] = bytes(body)


def _marked(store: MemoryStore) -> set[str]:
    return {key.partition("/")[0] for key in store.objects if key.endswith("/quarantine.json")}


def _point(store: MemoryStore, directory: str, generation: int = 1) -> None:
    manifest = store.objects[f"{directory}/manifest.json"]
    pointer = Latest(dir=directory, manifest_crc=crc32(manifest), step=1, generation=generation, writer="old")
    store.objects[LATEST] = pointer.to_bytes()


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
    bad = _dir(store, 30)
    _flip(store, 30, rank)
    ranks: list[Rank] = []

    def act(seat: Seat) -> int | None:
        ranks.append(Rank(store, seat))
        return ranks[-1].load()

    assert play(2, act) == [20, 20]
    assert _marked(store) == {bad}
    assert store.deeds.count("put quarantine.json") == 1
    for one in ranks:
        assert len(one.search.problems) == 1
        assert bad in one.search.problems[0]
        assert one.registry.bad == {bad}


def test_a_missing_shard_sends_all_to_the_next(store: FaultyStore) -> None:
    """The listing shows it; nothing is downloaded of a checkpoint that is not whole."""
    store.delete(f"{_dir(store, 30)}/rank-00001.safetensors")
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
    assert _marked(store) == set()


@pytest.mark.parametrize("deed", ["read LATEST", "list", "read manifest.json"])
def test_a_survey_that_fails_ends_it_for_all(store: FaultyStore, deed: str) -> None:
    """Nor is an empty answer made of a refused one, even for who insists on a fresh start."""
    store.fail_at = deed
    results = play(2, lambda seat: Rank(store, seat).load(allow_fresh=True))
    assert all(isinstance(result, StoreError) and "403" in str(result) for result in results)


def test_trouble_that_passes_costs_a_pause(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked again, the store answers, and the newest is taken."""
    monkeypatch.setattr(schedule, "_FIRST_PAUSE_SECONDS", 0.05)
    refused = {"read LATEST", "list ", "read manifest.json", "read_into rank-00000.safetensors"}

    def refuse(deed: str) -> None:
        if deed in refused:
            refused.discard(deed)
            raise StoreError("503 SlowDown")

    store.before = refuse
    assert Rank(store, patience_seconds=3600.0).load() == 30
    assert not refused


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
    assert _marked(store) == set()


def test_a_stop_outweighs_damage(store: FaultyStore) -> None:
    """The rank that found damage does not go on to the next checkpoint alone while the other leaves."""
    _flip(store, 30, 1)
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
    assert _marked(store) == set()


def test_the_run_is_claimed_before_anything_is_downloaded(store: FaultyStore) -> None:
    """From then on the holder before cannot move the pointer, however long the download takes."""
    old = registry(store)
    old.writer = store.objects[LATEST].decode().split('"writer": "')[1].split('"')[0]

    def act() -> int:
        loaded = Rank(store).search.load(fetch, allow_fresh=False)
        assert loaded is not None
        return loaded.step

    def fetch(manifest: Manifest) -> None:
        with pytest.raises(RunTaken):
            publish(old, manifest.step + 1)

    assert act() == 30


def test_a_save_between_survey_and_claim_is_not_lost(store: FaultyStore) -> None:
    """The holder before saved once more just then: what it saved is what we go on from."""
    old = registry(store)
    old.writer = store.objects[LATEST].decode().split('"writer": "')[1].split('"')[0]
    late = [40]

    def save(deed: str) -> None:
        if deed == "list " and late:
            step = late.pop()
            store.deeds.append("the holder before saves")
            real = list(MemoryStore.list(store))
            publish(old, step, ranks=2)
            store.list = lambda: iter(real)  # type: ignore[method-assign]
        elif deed.startswith("put_if LATEST") and "list" in vars(store):
            del store.list

    store.before = save
    assert Rank(store).load() == 40


def test_a_run_of_a_later_life_is_not_claimed_back(store: FaultyStore) -> None:
    """Whoever comes with a lower generation, and a lease that says so, leaves; so do its other ranks."""
    _point(store, _dir(store, 30), generation=9)

    def act(seat: Seat) -> int | None:
        rank = Rank(store, seat)
        rank.search = Resume(rank.registry, seat, 0.0, _nothing, raise_to=lambda seen: 3)
        return rank.load()

    results = play(2, act)
    assert [type(result) for result in results] == [RunTaken, RunTaken]


def test_the_lease_is_told_how_high_the_store_has_got(store: FaultyStore) -> None:
    """A lease that was deleted begins at 1; the store knows better."""
    _point(store, _dir(store, 30), generation=7)
    told: list[int] = []
    rank = Rank(store)

    def raise_to(seen: int) -> int:
        told.append(seen)
        return seen + 5

    rank.search = Resume(rank.registry, Alone(), 0.0, _nothing, raise_to)
    assert rank.load() == 30
    assert told == [7]
    assert rank.registry.generation == 12


@pytest.mark.parametrize("size_bytes", [2**40, 2, 0])
def test_hostile_sizes_are_refused_before_anything_is_reserved(store: FaultyStore, size_bytes: int) -> None:
    """A sealed manifest that claims a terabyte costs no memory: the store is asked how much there is."""
    directory = _dir(store, 30)
    key = f"{directory}/manifest.json"
    manifest = Manifest.from_bytes(store.objects[key])
    parts = ["00000000"] * -(-size_bytes // 2**32)
    file = File.of(RANK_FILE.format(0), size_bytes, 2**32, parts)
    store.objects[key] = replace(manifest, files=(file, manifest.files[1])).to_bytes()
    _point(store, directory)
    rank = Rank(store)
    assert rank.load() == 20
    assert rank.fetched == [20]


def test_hostile_sizes_where_no_listing_shows_the_directory(store: FaultyStore) -> None:
    """A store whose listing lags behind is asked for each size, before anything is reserved."""
    hidden = _dir(store, 30)
    store.list = lambda: (entry for entry in MemoryStore.list(store) if hidden not in entry.key)  # type: ignore[method-assign]
    assert Rank(store).load() == 30
    store.objects[f"{hidden}/rank-00001.safetensors"] += b"!"
    rank = Rank(store)
    assert rank.load() == 20
    assert rank.fetched == [20]
    assert _marked(store) == set()


def test_what_is_in_quarantine_is_tried_at_last_and_let_out(store: FaultyStore) -> None:
    """A network that turns bits over loses no run for ever: what verifies after all is no longer marked."""
    made = registry(store)
    for step in (10, 20, 30):
        made.quarantine(_dir(store, step), "a bit has turned over")
    _flip(store, 30, 0)
    rank = Rank(store)
    assert rank.load() == 20
    assert rank.fetched == [30, 20]
    assert _marked(store) == {_dir(store, 30), _dir(store, 10)}
    assert Rank(store).load() == 20


def test_a_good_one_is_preferred_to_one_in_quarantine(store: FaultyStore) -> None:
    """Also to the one that LATEST names, which is not even downloaded."""
    registry(store).quarantine(_dir(store, 30), "a bit has turned over")
    rank = Rank(store)
    assert rank.load() == 20
    assert rank.fetched == [20]


@pytest.mark.parametrize("pointed_at", [False, True])
def test_what_is_unhealthy_is_never_gone_on_from(store: FaultyStore, pointed_at: bool) -> None:
    """Nor when its mark was lost, or somebody points LATEST at it; and it is not called damaged."""
    nan = publish(_life_of(store), 40, healthy=False, ranks=2)
    store.delete(f"{nan.dir}/unhealthy")
    if pointed_at:
        _point(store, nan.dir)
    else:
        store.delete(LATEST)
    rank = Rank(store)
    assert rank.load() == 30
    assert "saved as unhealthy" in rank.search.problems[0]
    assert _marked(store) == set()


def _life_of(store: MemoryStore) -> Registry:
    latest = registry(store).latest()
    assert latest is not None
    life = registry(store, latest.generation)
    life.writer = latest.writer
    return life


def test_a_run_that_was_never_healthy_is_not_begun_again_unheard() -> None:
    """Only poisoned saves: somebody should look, before the same comes again."""
    store = FaultyStore()
    publish(registry(store), 10, healthy=False)
    with pytest.raises(StoreError, match="unhealthy"):
        Rank(store).load()
    assert Rank(store).load(allow_fresh=True) is None


def test_nothing_that_verifies_is_a_refusal_on_all_ranks(store: FaultyStore) -> None:
    """With every reason; who insists begins at nothing, and outranks what lies there."""
    for step in (10, 20, 30):
        _flip(store, step, 1)
    results = play(2, lambda seat: Rank(store, seat).load())
    for result in results:
        assert isinstance(result, StoreError)
        assert str(result).count("checksum") == 3
        assert "SPOTWATCH_ALLOW_FRESH=1" in str(result)
    assert len(_marked(store)) == 3
    ranks: list[Rank] = []

    def act(seat: Seat) -> int | None:
        ranks.append(Rank(store, seat))
        return ranks[-1].load(allow_fresh=True)

    assert play(2, act) == [None, None]
    first = next(rank for rank in ranks if rank.world.is_first)
    publish(first.registry, 1, ranks=2)
    assert play(2, lambda seat: Rank(store, seat).load()) == [1, 1]


def test_an_empty_store_is_a_fresh_run() -> None:
    """Nothing at all, or a first save that died: there is nothing to lose."""
    store = FaultyStore()
    assert play(2, lambda seat: Rank(store, seat).load()) == [None, None]
    store.put("step-000000010-g1-dead/rank-00000.safetensors", b"half")
    assert play(2, lambda seat: Rank(store, seat).load()) == [None, None]


@pytest.mark.parametrize(
    "body", [b"", b"step-30", b"x" * 100_000, None], ids=["empty", "words", "huge", "none"]
)
def test_a_pointer_of_no_use_costs_nothing(store: FaultyStore, body: bytes | None) -> None:
    """All manifests are there: the newest that verifies is taken; the damage is said, its absence is not."""
    del store.objects[LATEST]
    if body is not None:
        store.objects[LATEST] = body
    rank = Rank(store)
    assert rank.load() == 30
    assert [problem[:7] for problem in rank.search.problems] == ([] if body is None else ["LATEST:"])


def test_a_pointer_to_nothing_marks_nothing(store: FaultyStore) -> None:
    """A directory that is not there is not made by marking it."""
    store.objects[LATEST] = Latest(
        dir="step-000000099-g1-gone", manifest_crc="0", step=99, generation=1
    ).to_bytes()
    assert Rank(store).load() == 30
    assert _marked(store) == set()


def test_a_manifest_lost_on_the_way_is_read_again(store: FaultyStore) -> None:
    """One bit in transit costs one request; two in a row cost the checkpoint its place."""
    real = store.objects[f"{_dir(store, 30)}/manifest.json"]
    noise = [True]

    class Noisy(FaultyStore):
        def read(self, key: str, *, most_bytes: int) -> tuple[bytes, str]:
            body, version = super().read(key, most_bytes=most_bytes)
            if body == real and noise:
                noise.pop()
                body = body[:-9] + bytes([body[-9] ^ 1]) + body[-8:]
            return body, version

    noisy = Noisy()
    noisy.objects.update(store.objects)
    assert Rank(noisy).load() == 30
    noise += [True, True]
    assert Rank(noisy).load() == 20
    assert _marked(noisy) == {_dir(store, 30)}


def test_a_checkpoint_of_a_later_version_is_not_gone_behind(store: FaultyStore) -> None:
    """An older program neither loses the work of a newer one nor marks it as damaged: it refuses to start."""
    directory = _dir(store, 30)
    key = f"{directory}/manifest.json"
    later = store.objects[key].replace(b'"version":1', b'"version":2', 1)
    zero = later[:10] + b"00000000" + later[18:]
    store.objects[key] = zero[:10] + crc32(zero).encode() + zero[18:]
    _point(store, directory)
    first, second = play(2, lambda seat: Rank(store, seat).load(allow_fresh=True))
    assert isinstance(first, ConfigError)
    assert isinstance(second, StoreError)
    assert "a later spotwatch" in str(first)
    assert "a later spotwatch" in str(second)
    assert _marked(store) == set()
    assert Rank(store).search.newest_manifest() is None


def test_a_thousand_and_one_checkpoints_are_all_seen() -> None:
    """The newest that verifies is found behind any number of others."""
    store = FaultyStore()
    life = registry(store)
    publish(life, 7)
    for step in range(1000, 2001):
        store.put(f"step-{step:09d}-g1-dead/rank-00000.safetensors", b"")
    del store.objects[LATEST]
    assert Rank(store).load() == 7


def test_newest_manifest_tells_what_is_durable(store: FaultyStore) -> None:
    """Asked once, without patience: a stop waits for nobody."""
    search = Rank(store).search
    newest = search.newest_manifest()
    assert newest is not None
    assert newest.step == 30
    store.fail_at = "read"
    assert search.newest_manifest() is None
    store.fail_at = ""
    del store.objects[LATEST]
    assert search.newest_manifest() is None
