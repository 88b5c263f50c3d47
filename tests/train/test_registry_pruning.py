# SPDX-License-Identifier: Apache-2.0
"""Pruning a run: what counts stays, what died goes, and a failure is no more than told."""

from __future__ import annotations

import pytest

from spotwatch.errors import StoreError
from spotwatch.train.registry.manifest import LATEST
from spotwatch.train.store import PROBE

from .faulty import FaultyStore, dir_of_latest, publish, registry, steps, upload


@pytest.fixture
def store() -> FaultyStore:
    """Return an empty store that is watched."""
    return FaultyStore()


def test_prune_keeps_the_newest(store: FaultyStore) -> None:
    """As many as asked for stay."""
    made = registry(store)
    for step in range(1, 7):
        current = publish(made, step)
    assert len(made.prune(3, current)) == 3
    assert steps(made) == [(1, 6), (1, 5), (1, 4)]


def test_prune_keeps_latest_and_its_parent_whatever_their_steps(store: FaultyStore) -> None:
    """A life that began at an older step does not lose its own checkpoints to higher step numbers."""
    old = registry(store, 1)
    begun = publish(old, 1200)
    for step in (1800, 1892):
        publish(old, step)
    new = registry(store, 2)
    new.parent = begun.dir
    current = publish(new, 1300)
    new.prune(1, current)
    assert steps(new) == [(2, 1300), (1, 1892), (1, 1200)]
    after = publish(new, 1400)
    new.prune(1, after)
    assert steps(new) == [(2, 1400), (2, 1300)]


def test_prune_by_an_unhealthy_save_keeps_what_latest_names(store: FaultyStore) -> None:
    """Any number of poisoned saves removes neither LATEST nor its parent, and two of them stay."""
    made = registry(store)
    good = [publish(made, step) for step in (1, 2, 3)]
    for step in range(4, 9):
        made.prune(1, publish(made, step, healthy=False))
    assert steps(made) == [(1, 8), (1, 7), (1, 3), (1, 2)]
    assert dir_of_latest(made) == good[2].dir


def test_prune_removes_what_died_on_the_way(store: FaultyStore) -> None:
    """A directory without a manifest goes, left-over temporary files too; a later life's stays."""
    made = registry(store, 2)
    store.put("step-000000003-g1-dead/rank-00000.safetensors.1234.tmp", b"")
    store.put("step-000000009-g2-dead/rank-00000.safetensors", b"")
    store.put("step-000000001-g3-live/rank-00000.safetensors", b"")
    store.put("notes/mine.txt", b"")
    current = publish(made, 5)
    removed = made.prune(3, current)
    assert sorted(removed) == ["step-000000003-g1-dead", "step-000000009-g2-dead"]
    assert {e.key.partition("/")[0] for e in store.list()} == {
        LATEST,
        "notes",
        current.dir,
        "step-000000001-g3-live",
    }


def test_prune_leaves_the_save_under_way(store: FaultyStore) -> None:
    """The directory that was given out last is no left-over, though it has no manifest yet."""
    made = registry(store)
    current = publish(made, 5)
    upload(made, made.new_dir(6))
    assert made.prune(2, current) == []


def test_probes_go_once_they_are_old(store: FaultyStore) -> None:
    """One that is there at two prunings belongs to nobody any more."""
    made = registry(store)
    current = publish(made, 5)
    store.put(f"{PROBE}old", b"")
    made.prune(2, current)
    store.put(f"{PROBE}new", b"")
    made.prune(2, current)
    assert [key for key in store.objects if key.startswith(PROBE)] == [f"{PROBE}new"]


def test_a_bad_checkpoint_does_not_count(store: FaultyStore) -> None:
    """What did not verify takes no place from what did, and goes when enough newer ones exist."""
    made = registry(store)
    manifests = [publish(made, step) for step in (1, 2, 3, 4)]
    made.quarantine(manifests[2].dir, "a bit has turned over")
    assert made.prune(3, manifests[3]) == []
    for step in (5, 6):
        current = publish(made, step)
    assert sorted(made.prune(3, current)) == [manifest.dir for manifest in manifests[:3]]


def test_a_thousand_and_one_directories_are_no_more_trouble_than_three(store: FaultyStore) -> None:
    """However many a killed pruner left behind, all are seen."""
    made = registry(store, 2)
    for step in range(1001):
        store.put(f"step-{step:09d}-g1-dead/rank-00000.safetensors", b"")
    current = publish(made, 5)
    assert len(made.prune(3, current)) == 1001


def test_the_manifest_goes_first(store: FaultyStore) -> None:
    """What a killed pruner leaves can never be taken for a checkpoint."""
    made = registry(store)
    for step in (1, 2, 3):
        current = publish(made, step)
    made.prune(1, current)
    assert [deed for deed in store.deeds if deed.startswith("delete")] == [
        "delete manifest.json",
        "delete rank-00000.safetensors",
    ]


@pytest.mark.parametrize("deed", ["delete", "list", "read LATEST"])
def test_a_failed_prune_is_only_told(store: FaultyStore, caplog: pytest.LogCaptureFixture, deed: str) -> None:
    """Nothing that matters depends on pruning."""
    made = registry(store)
    for step in (1, 2, 3):
        current = publish(made, step)
    store.fail_at = deed
    assert made.prune(1, current) == []
    assert "pruning stopped" in caplog.text


def test_a_prune_that_breaks_off_says_what_is_gone(store: FaultyStore) -> None:
    """What was removed before the failure is removed."""
    made = registry(store)
    first, *_, current = [publish(made, step) for step in (1, 2, 3, 4)]
    second = made.checkpoints()[2]
    store.before = lambda deed: _fail() if store.deeds.count("delete manifest.json") == 2 else None
    assert made.prune(1, current) == [second.dir]
    store.before = lambda deed: None
    assert made.prune(1, current) == [first.dir]


def _fail() -> None:
    raise StoreError("503 SlowDown")


def test_who_has_lost_the_run_prunes_nothing(store: FaultyStore, caplog: pytest.LogCaptureFixture) -> None:
    """The one that comes late from behind a dead network removes nothing of the one that went on."""
    old, new = registry(store, 1), registry(store, 2)
    for step in (1, 2, 3, 4):
        current = publish(old, step)
    publish(new, 3)
    assert old.prune(1, current) == []
    assert not caplog.records  # nothing has failed, and the loss of the run is said where it is noticed
    new.lease_check = _fail
    assert new.prune(1, current) == []


def test_a_visitor_prunes_by_what_latest_says(store: FaultyStore) -> None:
    """The command line knows no current save: LATEST, its parent and what its trainer makes now all stay."""
    made = registry(store, 2)
    store.put("step-000000003-g1-dead/rank-00000.safetensors", b"")
    for step in range(1, 5):
        publish(made, step)
    upload(made, made.new_dir(5))
    visitor = registry(store)
    assert len(visitor.prune(2)) == 3
    assert steps(visitor) == [(2, 4), (2, 3)]
    assert made._under_way in {found.dir for found in visitor.checkpoints()}


@pytest.mark.parametrize("deed", ["", "read LATEST"])
def test_a_visitor_without_a_pointer_removes_nothing_unfinished(store: FaultyStore, deed: str) -> None:
    """Where LATEST is missing or cannot be read, nothing tells whether a save is under way."""
    made = registry(store)
    upload(made, made.new_dir(5))
    store.fail_at = deed
    assert registry(store).prune(2) == []
