# SPDX-License-Identifier: Apache-2.0
"""Publishing in the right order, fencing, and setting aside what is bad."""

from __future__ import annotations

import json

import pytest

from spotwatch.errors import CheckpointCorrupt, RunTaken, StoreError
from spotwatch.testing import MemoryStore
from spotwatch.train.parts import Body, crc32
from spotwatch.train.registry.manifest import LATEST, order_of
from spotwatch.train.registry.registry import Registry
from spotwatch.train.store import OnPart

from .faulty import BODY, PART_BYTES, FaultyStore, dir_of_latest, publish, registry, steps, upload


@pytest.fixture
def store() -> FaultyStore:
    """Return an empty store that is watched."""
    return FaultyStore()


def test_the_pointer_moves_last_and_is_read_again(store: FaultyStore) -> None:
    """Files, their sizes, manifest, pointer, then both are read back: that is what durable means."""
    manifest = publish(registry(store), 5)
    assert [deed for deed in store.deeds if deed != "read LATEST"] == [
        "upload rank-00000.safetensors",
        "size rank-00000.safetensors",
        "put manifest.json",
        "put_if LATEST",
        "read manifest.json",
    ]
    assert "read LATEST" in store.deeds[store.deeds.index("put_if LATEST") :]
    latest = registry(store).latest()
    assert latest is not None
    assert latest.manifest_crc == crc32(store.objects[f"{manifest.dir}/manifest.json"])


def test_a_file_is_described_by_its_parts(store: FaultyStore) -> None:
    """Size, parts and the checksum of the whole, without reading it a second time."""
    made = registry(store)
    file = upload(made, made.new_dir(3))
    assert (file.size_bytes, file.part_bytes, len(file.parts)) == (len(BODY), PART_BYTES, 4)
    assert file.crc32 == crc32(BODY)
    assert "read_into rank-00000.safetensors" not in store.deeds


def test_a_store_that_says_nonsense_about_an_upload_is_refused(store: FaultyStore) -> None:
    """So many checksums as there are parts, or it does not count."""

    class Forgetful(MemoryStore):
        def upload(self, key: str, body: Body, on_part: OnPart) -> tuple[str, ...]:
            return ("00000000",)

    made = registry(Forgetful())
    with pytest.raises(StoreError, match="uploaded, but"):
        upload(made, made.new_dir(3))


@pytest.mark.parametrize(
    "deed", ["upload", "size", "put manifest", "put_if LATEST", "read manifest", "read LATEST"]
)
def test_a_failed_save_leaves_the_pointer(store: FaultyStore, deed: str) -> None:
    """Whatever fails before the pointer moves, LATEST still names the checkpoint before; then the new one."""
    made = registry(store)
    first = publish(made, 5)
    store.fail_at = deed
    with pytest.raises(StoreError, match="403 Forbidden"):
        publish(made, 6)
    store.fail_at = ""
    assert (dir_of_latest(made) == first.dir) is (deed != "read manifest")
    assert made.parent == first.dir
    assert publish(made, 7).parent == first.dir


def test_a_file_that_shrank_is_seen(store: FaultyStore) -> None:
    """What was uploaded is asked for its size before a manifest speaks of it."""
    made = registry(store)
    directory = made.new_dir(5)
    upload(made, directory)
    store.after = lambda deed: (
        MemoryStore.put(store, f"{made._under_way}/rank-00001.safetensors", b"short")
        if deed == "upload rank-00001.safetensors"
        else None
    )
    with pytest.raises(StoreError, match=r"rank-00001\.safetensors has 5 bytes"):
        publish(made, 6, ranks=3)
    assert made.latest() is None


def test_a_manifest_that_comes_back_otherwise_does_not_count(store: FaultyStore) -> None:
    """A store that garbles what it is given is found out before anything is called durable."""
    made = registry(store)

    def garble(deed: str) -> None:
        if deed == "put_if LATEST":
            key = f"{made._under_way}/manifest.json"
            MemoryStore.put(store, key, store.objects[key].replace(b"rank-00000", b"rank-00009"))

    store.after = garble
    with pytest.raises(StoreError, match="read back"):
        publish(made, 5)
    assert made.parent is None


@pytest.mark.parametrize("deed", ["upload", "put manifest", "put_if LATEST"])
def test_the_lease_is_asked_before_each_write(store: FaultyStore, deed: str) -> None:
    """Who has lost the lease, at whatever moment, writes no file, no manifest and no pointer any more."""
    made = registry(store)
    first = publish(made, 5)
    asked_before: list[str] = []

    def check() -> None:
        asked_before.append(store.deeds[-1])
        if len(asked_before) == {"upload": 1, "put manifest": 2, "put_if LATEST": 3}[deed]:
            raise RunTaken("another machine holds the lease")

    made.lease_check = check
    store.deeds.clear()
    store.deeds.append("begin")
    with pytest.raises(RunTaken, match="lease"):
        publish(made, 6)
    assert not [done for done in store.deeds if done.startswith(deed)]
    assert dir_of_latest(made) == first.dir


def test_what_is_unhealthy_is_stored_and_not_pointed_at(store: FaultyStore) -> None:
    """A state with NaN is kept to be looked at; LATEST and the parent of the next one stay."""
    made = registry(store)
    good = publish(made, 5)
    nan = publish(made, 6, healthy=False)
    assert made.manifest(nan.dir).to_bytes() == nan.to_bytes()
    assert not nan.healthy
    assert dir_of_latest(made) == good.dir
    assert publish(made, 7).parent == good.dir
    assert [found.is_healthy for found in made.checkpoints()] == [True, False, True]


def test_the_mark_of_the_unhealthy_is_there_before_its_manifest(store: FaultyStore) -> None:
    """A machine that dies between the two leaves no checkpoint that looks healthy."""
    made = registry(store)
    publish(made, 6, healthy=False)
    assert store.deeds.index("put unhealthy") < store.deeds.index("put manifest.json")


def test_an_earlier_life_does_not_move_the_pointer(store: FaultyStore) -> None:
    """When another machine has gone on with the run, the first one stops writing, at once and unheard."""
    old, new = registry(store, 1), registry(store, 2)
    publish(old, 1800)
    kept = publish(new, 1300)
    store.deeds.clear()
    with pytest.raises(RunTaken, match="generation 2"):
        publish(old, 1892)
    assert store.deeds == ["read LATEST"]
    assert dir_of_latest(new) == kept.dir
    assert steps(new) == [(2, 1300), (1, 1800)]


def test_two_that_resumed_together_do_not_take_turns(store: FaultyStore) -> None:
    """Of one generation the first to save goes on; the other stops, whatever its step."""
    first, second = registry(store), registry(store)
    publish(first, 4)
    for step in (10, 11):
        with pytest.raises(RunTaken, match="generation 1"):
            publish(second, step)
        kept = publish(first, step - 5)
    latest = first.latest()
    assert latest is not None
    assert (latest.dir, latest.writer) == (kept.dir, first.writer)


def test_no_two_writers_are_the_same(store: FaultyStore) -> None:
    """Host and process number repeat from container to container; the writer does not."""
    assert registry(store).writer != registry(store).writer


def test_a_run_taken_over_during_the_upload(store: FaultyStore) -> None:
    """The generation is looked at again just before the pointer moves: an upload takes its time."""
    rivals = [registry(store, 2)]

    def overtake(deed: str) -> None:
        if deed.startswith("upload") and rivals:
            publish(rivals.pop(), 1300)

    store.after = overtake
    with pytest.raises(RunTaken):
        publish(registry(store, 1), 1892)
    latest = registry(store).latest()
    assert latest is not None
    assert latest.step == 1300
    assert "put manifest.json" not in store.deeds[store.deeds.index("put_if LATEST") :]


def test_a_claimed_run_is_lost_to_the_holder_before(store: FaultyStore) -> None:
    """Before the newcomer has saved anything, the one before can publish no more, and what it named stays."""
    old, new = registry(store, 1), registry(store, 2)
    kept = publish(old, 1800)
    new.claim()
    with pytest.raises(RunTaken):
        publish(old, 1892)
    assert dir_of_latest(new) == kept.dir
    assert publish(new, 1801).generation == 2


def test_a_quarantine_says_when_by_whom_and_why_and_is_written_once(store: FaultyStore) -> None:
    """The first reason stays; a later one is the consequence of the first."""
    made = registry(store)
    manifest = publish(made, 5)
    for reason in ("a bit has turned over", "again"):
        made.quarantine(manifest.dir, reason)
    row = json.loads(store.objects[f"{manifest.dir}/quarantine.json"])
    assert row.keys() == {"at", "by", "reason"}
    assert (row["by"], row["reason"]) == (made.writer, "a bit has turned over")
    assert made.checkpoints()[0].is_quarantined
    made.release(manifest.dir)
    assert not made.checkpoints()[0].is_quarantined
    assert made.bad == set()


@pytest.mark.parametrize("deed", ["put quarantine", "read quarantine"])
def test_a_quarantine_that_cannot_be_written_is_only_logged(
    store: FaultyStore, caplog: pytest.LogCaptureFixture, deed: str
) -> None:
    """A resume must not fail because the bucket may only be read; this life remembers all the same."""
    made = registry(store)
    manifest = publish(made, 5)
    store.fail_at = deed
    made.quarantine(manifest.dir, "a bit has turned over")
    assert made.bad == {manifest.dir}
    assert "could not be put into quarantine" in caplog.text


def test_a_manifest_of_another_run_or_pointer_is_refused(store: FaultyStore) -> None:
    """It is sound, and not ours; or not the one that was meant."""
    made = registry(store)
    manifest = publish(made, 5)
    with pytest.raises(CheckpointCorrupt, match="not the one"):
        made.manifest(manifest.dir, "00000000")
    with pytest.raises(CheckpointCorrupt, match="holds the manifest of run/"):
        Registry(store, "another").manifest(manifest.dir)


def test_names_carry_the_documented_form(store: FaultyStore) -> None:
    """`step-` and nine digits, then the attempt; never the same twice."""
    made = registry(store)
    one, other = publish(made, 7), publish(made, 7)
    assert one.dir.startswith("step-000000007-")
    assert one.dir != other.dir
    assert order_of(one.dir) == (1, 7)


def test_nothing_is_written_twice() -> None:
    """Two lives that save the same steps share no key but the pointer's."""
    store = MemoryStore()
    written: list[dict[str, bytes]] = []
    for generation in (1, 2):
        life = registry(store, generation)
        for step in (5, 5, 6):
            publish(life, step)
            for before in written:
                assert before.items() <= store.objects.items()
            written.append({key: body for key, body in store.objects.items() if key != LATEST})
