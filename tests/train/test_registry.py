# SPDX-License-Identifier: Apache-2.0
"""Publishing in the right order, fencing, and pruning that never removes what counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spotwatch.errors import RunTaken, StoreError
from spotwatch.train.manifest import LATEST, Manifest, order_of
from spotwatch.train.registry import Registry
from spotwatch.train.store import Entry
from spotwatch.train.store_dir import DirectoryStore


class _Watched(DirectoryStore):
    """A store that notes what is done to it, and can fail at one deed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.deeds: list[str] = []
        self.fail_at = ""
        self.order: list[int] = []

    def _note(self, deed: str, key: str) -> None:
        self.deeds.append(f"{deed} {key.rpartition('/')[2]}")
        if self.fail_at and self.deeds[-1].startswith(self.fail_at):
            raise StoreError(f"made to fail at {self.deeds[-1]}")

    def put(self, key: str, body: bytes | memoryview) -> None:
        self._note("put", key)
        super().put(key, body)

    def get(self, key: str, *, most_bytes: int) -> bytes:
        self._note("get", key)
        return super().get(key, most_bytes=most_bytes)

    def delete(self, key: str) -> None:
        self._note("delete", key)
        super().delete(key)

    def list(self) -> Iterator[Entry]:
        return iter(sorted(super().list(), key=lambda entry: entry.key, reverse=True))


@pytest.fixture
def store(tmp_path: Path) -> _Watched:
    """Return an empty store that is watched."""
    return _Watched(tmp_path / "run")


def _registry(store: _Watched, generation: int = 1) -> Registry:
    registry = Registry(store, "run")
    registry.generation = generation
    return registry


def _publish(registry: Registry, step: int) -> Manifest:
    return registry.publish(
        step=step, body=memoryview(b"body"), state={}, versions={}, now=lambda: datetime.now(UTC)
    )


def _steps(registry: Registry) -> list[tuple[int, int]]:
    return [found.order for found in registry.checkpoints() if found.is_complete]


def test_the_pointer_moves_last_and_is_read_again(store: _Watched) -> None:
    """Files, manifest, pointer, then both are read back: that is what durable means."""
    _publish(_registry(store), 5)
    assert [deed for deed in store.deeds if deed != "get LATEST"] == [
        "put rank-00000.safetensors",
        "put manifest.json",
        "put LATEST",
        "get manifest.json",
    ]
    assert store.deeds.index("put LATEST") < len(store.deeds) - 1 - store.deeds[::-1].index("get LATEST")


@pytest.mark.parametrize("deed", ["put rank", "put manifest", "put LATEST"])
def test_a_failed_save_leaves_the_pointer(store: _Watched, deed: str) -> None:
    """Whatever fails, LATEST still names the checkpoint before."""
    registry = _registry(store)
    first = _publish(registry, 5)
    store.fail_at = deed
    with pytest.raises(StoreError):
        _publish(registry, 6)
    store.fail_at = ""
    latest = registry.latest()
    assert latest is not None
    assert latest.dir == first.dir
    assert registry.parent == first.dir


def test_an_earlier_life_does_not_move_the_pointer(store: _Watched) -> None:
    """When another machine has gone on with the run, the first one stops writing, at once and unheard."""
    old, new = _registry(store, 1), _registry(store, 2)
    _publish(old, 1800)
    kept = _publish(new, 1300)
    with pytest.raises(RunTaken, match="generation 2"):
        _publish(old, 1892)
    latest = new.latest()
    assert latest is not None
    assert latest.dir == kept.dir
    assert _steps(new) == [(2, 1300), (1, 1800)]


def test_two_that_resumed_together_do_not_take_turns(store: _Watched) -> None:
    """Of one generation the first to save goes on; the other stops, whatever its step."""
    first, second = _registry(store), _registry(store)
    _publish(first, 4)
    for step in (10, 11):
        with pytest.raises(RunTaken, match="generation 1"):
            _publish(second, step)
        kept = _publish(first, step - 5)
    latest = first.latest()
    assert latest is not None
    assert (latest.dir, latest.writer) == (kept.dir, first.writer)


def test_no_two_writers_are_the_same(store: _Watched) -> None:
    """Host and process number repeat from container to container; the writer does not."""
    assert _registry(store).writer != _registry(store).writer


def test_a_pointer_moved_at_the_same_moment_is_noticed(tmp_path: Path) -> None:
    """Between the last look and the write there is a moment; what is read back tells who lost."""

    class Raced(_Watched):
        rival: Registry | None = None

        def put(self, key: str, body: bytes | memoryview) -> None:
            super().put(key, body)
            if self.rival is not None and key == LATEST:
                pointer = self.rival.latest()
                assert pointer is not None
                super().put(key, replace(pointer, writer=self.rival.writer).to_bytes())

    store = Raced(tmp_path / "run")
    store.rival = _registry(_Watched(tmp_path / "run"))
    with pytest.raises(RunTaken, match="after we wrote"):
        _publish(_registry(store), 5)


def test_a_run_taken_over_during_the_upload(tmp_path: Path) -> None:
    """The generation is looked at again just before the pointer moves: an upload takes its time."""

    class Overtaken(_Watched):
        rival: Registry | None = None

        def put(self, key: str, body: bytes | memoryview) -> None:
            super().put(key, body)
            if self.rival is not None and key.endswith("safetensors"):
                rival, self.rival = self.rival, None
                _publish(rival, 1300)

    store = Overtaken(tmp_path / "run")
    store.rival = _registry(_Watched(tmp_path / "run"), 2)
    with pytest.raises(RunTaken):
        _publish(_registry(store, 1), 1892)
    latest = _registry(store).latest()
    assert latest is not None
    assert latest.step == 1300


def test_prune_keeps_the_newest(store: _Watched) -> None:
    """As many as asked for stay."""
    registry = _registry(store)
    for step in range(1, 7):
        current = _publish(registry, step)
    assert len(registry.prune(3, current)) == 3
    assert _steps(registry) == [(1, 6), (1, 5), (1, 4)]


def test_prune_keeps_latest_and_its_parent_whatever_their_steps(store: _Watched) -> None:
    """A life that began at an older step does not lose its own checkpoints to higher step numbers."""
    old = _registry(store, 1)
    for step in (1200, 1800, 1892):
        _publish(old, step)
    new = _registry(store, 2)
    current = _publish(new, 1300)
    new.prune(1, current)
    assert _steps(new) == [(2, 1300)]
    after = _publish(new, 1400)
    new.prune(1, after)
    assert _steps(new) == [(2, 1400), (2, 1300)]


def test_prune_removes_what_died_on_the_way(store: _Watched) -> None:
    """A directory without a manifest goes, left-over temporary files too; a later life's stays."""
    registry = _registry(store, 2)
    store.put("step-000000003-g1-dead/rank-00000.safetensors.1234.tmp", b"")
    store.put("step-000000009-g2-dead/rank-00000.safetensors", b"")
    store.put("step-000000001-g3-live/rank-00000.safetensors", b"")
    store.put("notes/mine.txt", b"")
    current = _publish(registry, 5)
    removed = registry.prune(3, current)
    assert sorted(removed) == ["step-000000003-g1-dead", "step-000000009-g2-dead"]
    assert {e.key.partition("/")[0] for e in store.list()} == {
        LATEST,
        "notes",
        current.dir,
        "step-000000001-g3-live",
    }


def test_a_bad_checkpoint_does_not_count(store: _Watched) -> None:
    """What did not verify takes no place from what did."""
    registry = _registry(store)
    manifests = [_publish(registry, step) for step in (1, 2, 3, 4)]
    registry.bad.add(manifests[2].dir)
    registry.prune(3, manifests[3])
    assert [step for _, step in _steps(registry)] == [4, 3, 2, 1]


def test_the_manifest_goes_first(store: _Watched) -> None:
    """What a killed pruner leaves can never be taken for a checkpoint."""
    registry = _registry(store)
    for step in (1, 2, 3):
        current = _publish(registry, step)
    store.fail_at = "delete rank"
    assert registry.prune(1, current) == []
    assert [step for _, step in _steps(registry)] == [3, 2]
    store.fail_at = ""
    assert len(registry.prune(1, current)) == 1


def test_a_store_that_forbids_deleting_is_no_disaster(
    store: _Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """Pruning only logs."""
    registry = _registry(store)
    for step in (1, 2, 3):
        current = _publish(registry, step)
    store.fail_at = "delete"
    assert registry.prune(1, current) == []
    assert "pruning stopped" in caplog.text


def test_names_carry_the_documented_form(store: _Watched) -> None:
    """`step-` and nine digits, then the attempt; never the same twice."""
    registry = _registry(store)
    one, other = _publish(registry, 7), _publish(registry, 7)
    assert one.dir.startswith("step-000000007-")
    assert one.dir != other.dir
    assert order_of(one.dir) == (1, 7)
