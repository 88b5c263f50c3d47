# SPDX-License-Identifier: Apache-2.0
"""What the command line is told of a run's checkpoints, and that one can be verified without keeping it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spotwatch.errors import CheckpointCorrupt, StoreError
from spotwatch.train.registry import inventory
from spotwatch.train.registry.manifest import LATEST

from .faulty import FaultyStore, publish, registry, upload


@pytest.fixture
def store() -> FaultyStore:
    """Return an empty store that is watched."""
    return FaultyStore()


def test_each_state_has_its_row(store: FaultyStore) -> None:
    """Complete, unfinished, unhealthy, quarantined, damaged; which one counts, and which one before it."""
    made = registry(store)
    one, two, three, parent, latest = [publish(made, step) for step in (1, 2, 3, 4, 5)]
    nan = publish(made, 6, healthy=False)
    half = made.new_dir(7)
    upload(made, half)
    made.quarantine(two.dir, "a bit has turned over")
    store.objects[f"{three.dir}/manifest.json"] = b"{"
    rows = inventory.describe(registry(store))
    assert [(row.dir, row.state, row.role) for row in rows] == [
        (half, "incomplete", ""),
        (nan.dir, "unhealthy", ""),
        (latest.dir, "complete", "latest"),
        (parent.dir, "complete", "parent"),
        (three.dir, "damaged", ""),
        (two.dir, "quarantined", ""),
        (one.dir, "complete", ""),
    ]
    whole = rows[2]
    assert (whole.step, whole.generation, whole.files) == (5, 1, 1)
    assert whole.created_at == made.manifest(latest.dir).created_at
    assert whole.size_bytes > latest.size_bytes
    assert "checksum" in rows[4].note
    assert rows[5].note == "a bit has turned over"
    assert rows[4].created_at is None


@pytest.mark.parametrize("body", [None, b"{"])
def test_without_a_pointer_no_row_counts(store: FaultyStore, body: bytes | None) -> None:
    """Rows are shown all the same: it is then that one wants to see them."""
    publish(registry(store), 1)
    del store.objects[LATEST]
    if body is not None:
        store.objects[LATEST] = body
    (row,) = inventory.describe(registry(store))
    assert (row.state, row.role) == ("complete", "")


def test_a_manifest_that_latest_does_not_mean_is_damaged(store: FaultyStore) -> None:
    """A pointer and a manifest that do not fit each other are shown as what they are."""
    made = registry(store)
    one, other = publish(made, 1), publish(made, 2)
    moved = store.objects[LATEST].replace(other.dir.encode(), one.dir.encode())
    store.objects[LATEST] = moved
    by_dir = {row.dir: row for row in inventory.describe(registry(store))}
    assert by_dir[one.dir].state == "damaged"
    assert by_dir[other.dir].state == "complete"


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (lambda body: body[:-1], "rank-00001.safetensors has 1027 bytes, the manifest says 1028"),
        (lambda body: body + b"more", "rank-00001.safetensors has 1032 bytes, the manifest says 1028"),
        (lambda body: b"", "rank-00001.safetensors has 0 bytes, the manifest says 1028"),
        (None, "rank-00001.safetensors is missing"),
    ],
)
@pytest.mark.parametrize("healthy", [True, False])
def test_a_file_of_another_size_is_seen_without_reading_it(
    store: FaultyStore, change: Callable[[bytes], bytes] | None, note: str, *, healthy: bool
) -> None:
    """Cut, lengthened, emptied or gone: the listing tells, and no file is asked for."""
    made = registry(store)
    whole, cut = publish(made, 1, ranks=2), publish(made, 2, ranks=2, healthy=healthy)
    key = f"{cut.dir}/rank-00001.safetensors"
    body = store.objects.pop(key)
    if change is not None:
        store.objects[key] = change(body)
    store.deeds.clear()
    rows = {row.dir: row for row in inventory.describe(registry(store))}
    assert (rows[cut.dir].state, rows[cut.dir].note) == ("damaged", note)
    assert (rows[whole.dir].state, rows[whole.dir].note) == ("complete", "")
    assert rows[cut.dir].created_at == cut.created_at
    assert not [deed for deed in store.deeds if "rank-" in deed]


def test_of_many_files_a_few_are_named(store: FaultyStore) -> None:
    """A line stays a line; the problems are all there for whoever asks."""
    made = registry(store)
    for file in publish(made, 1, ranks=5).files:
        del store.objects[f"{made.checkpoints()[0].dir}/{file.name}"]
    (row,) = inventory.describe(registry(store))
    assert row.note.endswith("rank-00002.safetensors is missing; and 2 more")
    assert len(row.problems) == 5


def test_quarantine_outranks_what_the_sizes_say(store: FaultyStore) -> None:
    """The reason for which it was set aside stays the one that is shown."""
    made = registry(store)
    cut = publish(made, 1)
    store.objects[f"{cut.dir}/rank-00000.safetensors"] = b""
    made.quarantine(cut.dir, "a bit has turned over")
    (row,) = inventory.describe(registry(store))
    assert (row.state, row.note) == ("quarantined", "a bit has turned over")


def test_trouble_with_the_store_is_no_empty_table(store: FaultyStore) -> None:
    """What cannot be listed or read is an error."""
    publish(registry(store), 1)
    for deed in ("list", "read LATEST", "read manifest"):
        store.fail_at = deed
        with pytest.raises(StoreError, match="403"):
            inventory.describe(registry(store))


def test_a_checkpoint_of_several_ranks_is_verified_with_progress(store: FaultyStore) -> None:
    """Every byte of every file is read, and the bytes so far add up over the files."""
    made = registry(store)
    manifest = publish(made, 5, ranks=3)
    seen: list[int] = []
    assert inventory.verify(made, manifest.dir, seen.append).to_bytes() == manifest.to_bytes()
    assert seen == sorted(seen)
    assert seen[-1] == manifest.size_bytes


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_one_flipped_bit_in_any_file_is_found(store: FaultyStore, rank: int) -> None:
    """The file and the place are named."""
    made = registry(store)
    manifest = publish(made, 5, ranks=3)
    key = f"{manifest.dir}/rank-{rank:05d}.safetensors"
    body = bytearray(store.objects[key])
    body[700] ^= 16
    store.objects[key] = bytes(body)
    with pytest.raises(CheckpointCorrupt, match=rf"rank-0000{rank}\.safetensors: the 300 bytes from 600 on"):
        inventory.verify(made, manifest.dir)


def test_a_missing_file_is_found(store: FaultyStore) -> None:
    """What the manifest lists and the store has not is named."""
    made = registry(store)
    manifest = publish(made, 5, ranks=2)
    store.delete(f"{manifest.dir}/rank-00001.safetensors")
    with pytest.raises(CheckpointCorrupt, match=r"rank-00001\.safetensors is missing"):
        inventory.verify(made, manifest.dir)
