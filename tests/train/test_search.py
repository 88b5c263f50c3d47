# SPDX-License-Identifier: Apache-2.0
"""Which checkpoint is taken: the failure table without a trainer around it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwatch.errors import RunTaken, StoreError
from spotwatch.testing import MemoryStore
from spotwatch.train import schedule
from spotwatch.train.registry.manifest import LATEST, File, Latest, Manifest
from spotwatch.train.registry.registry import RANK_FILE, Registry
from spotwatch.train.registry.resume import Resume
from spotwatch.train.world import Alone

from .faulty import FaultyStore, publish, registry
from .searching import Rank, dir_of, flip, marked, nothing, point, saved_run
from .seats import play


@pytest.fixture
def store() -> FaultyStore:
    """Return the store of a run of two ranks that saved at 10, 20 and 30."""
    return saved_run()


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


def test_the_lease_is_told_how_high_the_store_has_got(store: FaultyStore) -> None:
    """A lease that was deleted begins at 1; the store knows better."""
    point(store, dir_of(store, 30), generation=7)
    told: list[int] = []
    rank = Rank(store)

    def raise_to(seen: int) -> int:
        told.append(seen)
        return seen + 5

    rank.search = Resume(rank.registry, Alone(), 0.0, nothing, raise_to)
    assert rank.load() == 30
    assert told == [7]
    assert rank.registry.generation == 12


@pytest.mark.parametrize("size_bytes", [2**40, 2, 0])
def test_hostile_sizes_are_refused_before_anything_is_reserved(store: FaultyStore, size_bytes: int) -> None:
    """A sealed manifest that claims a terabyte costs no memory: the store is asked how much there is."""
    directory = dir_of(store, 30)
    key = f"{directory}/manifest.json"
    manifest = Manifest.from_bytes(store.objects[key])
    parts = ["00000000"] * -(-size_bytes // 2**32)
    file = File.of(RANK_FILE.format(0), size_bytes, 2**32, parts)
    store.objects[key] = replace(manifest, files=(file, manifest.files[1])).to_bytes()
    point(store, directory)
    rank = Rank(store)
    assert rank.load() == 20
    assert rank.fetched == [20]


def test_hostile_sizes_where_no_listing_shows_the_directory(store: FaultyStore) -> None:
    """A store whose listing lags behind is asked for each size, before anything is reserved."""
    hidden = dir_of(store, 30)
    store.list = lambda: (entry for entry in MemoryStore.list(store) if hidden not in entry.key)  # type: ignore[method-assign]
    assert Rank(store).load() == 30
    store.objects[f"{hidden}/rank-00001.safetensors"] += b"!"
    rank = Rank(store)
    assert rank.load() == 20
    assert rank.fetched == [20]
    assert marked(store) == set()


def test_what_is_in_quarantine_is_tried_at_last_and_let_out(store: FaultyStore) -> None:
    """A network that turns bits over loses no run for ever: what verifies after all is no longer marked."""
    made = registry(store)
    for step in (10, 20, 30):
        made.quarantine(dir_of(store, step), "a bit has turned over")
    flip(store, 30, 0)
    rank = Rank(store)
    assert rank.load() == 20
    assert rank.fetched == [30, 20]
    assert marked(store) == {dir_of(store, 30), dir_of(store, 10)}
    assert Rank(store).load() == 20


def test_a_good_one_is_preferred_to_one_in_quarantine(store: FaultyStore) -> None:
    """Also to the one that LATEST names, which is not even downloaded."""
    registry(store).quarantine(dir_of(store, 30), "a bit has turned over")
    rank = Rank(store)
    assert rank.load() == 20
    assert rank.fetched == [20]


@pytest.mark.parametrize("pointed_at", [False, True])
def test_what_is_unhealthy_is_never_gone_on_from(store: FaultyStore, pointed_at: bool) -> None:
    """Nor when its mark was lost, or somebody points LATEST at it; and it is not called damaged."""
    nan = publish(_life_of(store), 40, healthy=False, ranks=2)
    store.delete(f"{nan.dir}/unhealthy")
    if pointed_at:
        point(store, nan.dir)
    else:
        store.delete(LATEST)
    rank = Rank(store)
    assert rank.load() == 30
    assert "saved as unhealthy" in rank.search.problems[0]
    assert marked(store) == set()


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
    assert marked(store) == set()


def test_a_manifest_lost_on_the_way_is_read_again(store: FaultyStore) -> None:
    """One bit in transit costs one request; two in a row cost the checkpoint its place."""
    real = store.objects[f"{dir_of(store, 30)}/manifest.json"]
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
    assert marked(noisy) == {dir_of(store, 30)}


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
