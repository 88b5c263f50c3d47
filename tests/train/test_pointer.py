# SPDX-License-Identifier: Apache-2.0
"""LATEST moves by compare-and-swap where the store has it, is fenced in any case, and can be taken over."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from spotwatch.errors import RunTaken, StoreError
from spotwatch.testing import MemoryStore
from spotwatch.train.registry import pointer
from spotwatch.train.registry.manifest import LATEST, Latest, new_dir
from spotwatch.train.store import Store
from spotwatch.train.stores.directory import DirectoryStore

from .faulty import FaultyStore


def _latest(step: int, generation: int = 1, writer: str = "me") -> Latest:
    return Latest(
        dir=new_dir(step, generation),
        manifest_crc="0000beef",
        step=step,
        generation=generation,
        writer=writer,
    )


def _nothing() -> None:
    pass


@pytest.fixture(params=[True, False], ids=["conditional", "advisory"])
def store(request: pytest.FixtureRequest) -> FaultyStore:
    """Return an empty store, with and without conditional writes."""
    return FaultyStore(is_conditional=request.param)


def test_it_moves_and_is_read_again(store: FaultyStore) -> None:
    """From nothing, and from what it was; the last deed is to read it."""
    for step in (1, 2):
        wanted = _latest(step)
        pointer.move(store, wanted, _nothing)
        assert pointer.read(store) == wanted
        assert store.deeds[-1] == "read LATEST"


def test_a_conditional_store_is_never_written_to_without_a_condition() -> None:
    """A look and a write are one deed there; elsewhere it is a plain write."""
    for conditional, deed in ((True, "put_if LATEST"), (False, "put LATEST")):
        store = FaultyStore(is_conditional=conditional)
        pointer.move(store, _latest(1), _nothing)
        assert [one for one in store.deeds if one.startswith("put")] == [deed]


@pytest.mark.parametrize(
    "other", [_latest(1300, 2, "other"), _latest(5, 1, "other")], ids=["a later life", "another process"]
)
def test_a_run_that_is_lost_is_left_alone(store: FaultyStore, other: Latest) -> None:
    """A later life, or another process of this one, has gone on: nothing is written."""
    pointer.move(store, other, _nothing)
    store.deeds.clear()
    with pytest.raises(RunTaken, match="generation"):
        pointer.move(store, _latest(1892), _nothing)
    assert store.deeds == ["read LATEST"]
    assert pointer.read(store) == other


@pytest.mark.parametrize("body", [b"", b"step-30", b"x" * 100_000], ids=["empty", "unreadable", "huge"])
def test_one_that_cannot_be_understood_is_replaced(store: FaultyStore, body: bytes) -> None:
    """It names nothing that could be lost; claiming leaves it, for there is nothing to name."""
    store.put(LATEST, body)
    assert pointer.claim(store, 3, "me", _nothing) is None
    assert store.objects[LATEST] == body
    wanted = _latest(5)
    pointer.move(store, wanted, _nothing)
    assert pointer.read(store) == wanted


def test_a_directory_in_its_place_is_replaced(tmp_path: Path) -> None:
    """What has no version cannot be compared with, only put aside."""
    store = DirectoryStore(tmp_path / "run")
    (tmp_path / "run" / LATEST).mkdir(parents=True)
    wanted = _latest(5)
    pointer.move(store, wanted, _nothing)
    assert pointer.read(store) == wanted


def test_a_move_that_was_overtaken_looks_again() -> None:
    """A conflict with an earlier life is none: it is looked at again and replaced."""
    store = FaultyStore()

    def overtake(deed: str) -> None:
        if deed == "put_if LATEST" and store.deeds.count(deed) == 1:
            MemoryStore.put(store, LATEST, _latest(7, 1, "old").to_bytes())

    store.before = overtake
    wanted = _latest(5, 2)
    pointer.move(store, wanted, _nothing)
    assert pointer.read(store) == wanted
    assert store.deeds.count("put_if LATEST") == 2


def test_a_move_that_was_overtaken_by_a_later_life_is_lost() -> None:
    """A conflict with a later life is the end, and its pointer stands."""
    store = FaultyStore()
    later = _latest(7, 3, "new")
    store.before = lambda deed: MemoryStore.put(store, LATEST, later.to_bytes()) if "put_if" in deed else None
    with pytest.raises(RunTaken):
        pointer.move(store, _latest(5, 2), _nothing)
    assert pointer.read(store) == later


def test_a_pointer_that_never_rests_is_trouble_with_the_store() -> None:
    """Somebody who writes it again and again without a right to is no reason to try for ever."""
    store = FaultyStore()
    steps = iter(range(100))

    def overtake(deed: str) -> None:
        if deed == "put_if LATEST":
            MemoryStore.put(store, LATEST, _latest(next(steps), 1, "old").to_bytes())

    store.before = overtake
    with pytest.raises(StoreError, match="4 times"):
        pointer.move(store, _latest(5, 2), _nothing)
    with pytest.raises(StoreError, match="4 times"):
        pointer.claim(store, 2, "me", _nothing)


def test_an_answer_that_was_lost_is_found_again() -> None:
    """The write succeeded and its answer did not arrive; tried again it finds its own pointer."""
    store = FaultyStore()
    wanted = _latest(5)
    store.after = lambda deed: _fail() if deed == "put_if LATEST" else None
    with pytest.raises(StoreError, match="lost"):
        pointer.move(store, wanted, _nothing)
    store.after = lambda deed: None
    pointer.move(store, wanted, _nothing)
    assert store.deeds.count("put_if LATEST") == 1


def _fail() -> None:
    raise StoreError("the answer was lost")


def test_without_conditions_a_race_is_noticed_afterwards() -> None:
    """Between look and write there is a moment; what is read back tells who lost."""
    store = FaultyStore(is_conditional=False)

    def race(deed: str) -> None:
        if deed == "put LATEST":
            MemoryStore.put(store, LATEST, _latest(7, 2, "rival").to_bytes())

    store.after = race
    with pytest.raises(RunTaken, match="after we wrote"):
        pointer.move(store, _latest(5, 2), _nothing)


def test_what_is_read_back_damaged_is_no_success(store: FaultyStore) -> None:
    """A pointer that came out otherwise than it went in does not count."""
    store.after = lambda deed: MemoryStore.put(store, LATEST, b"{") if deed.startswith("put") else None
    with pytest.raises(StoreError, match="read back"):
        pointer.move(store, _latest(5), _nothing)


def test_the_lease_is_asked_before_each_write(store: FaultyStore) -> None:
    """Who has lost the lease writes no pointer and claims none."""

    def lost() -> None:
        raise RunTaken("another machine holds the lease")

    with pytest.raises(RunTaken, match="lease"):
        pointer.move(store, _latest(5), lost)
    assert pointer.read(store) is None
    before = _latest(5, 1, "old")
    pointer.move(store, before, _nothing)
    with pytest.raises(RunTaken, match="lease"):
        pointer.claim(store, 2, "me", lost)
    assert pointer.read(store) == before


def test_a_claim_names_what_was_named(store: FaultyStore) -> None:
    """The same checkpoint, another holder; claimed twice it is written once, and never made."""
    assert pointer.claim(store, 2, "me", _nothing) is None
    before = _latest(1800, 1, "old")
    pointer.move(store, before, _nothing)
    wanted = replace(before, generation=2, writer="me")
    store.deeds.clear()
    for _ in range(2):
        assert pointer.claim(store, 2, "me", _nothing) == wanted
        assert pointer.read(store) == wanted
    assert len([deed for deed in store.deeds if deed.startswith("put")]) == 1


def test_a_claim_shuts_the_earlier_life_out(store: FaultyStore) -> None:
    """The holder before, alive behind a dead network, can neither move the pointer nor claim it back."""
    pointer.move(store, _latest(1800, 1, "old"), _nothing)
    claimed = pointer.claim(store, 2, "new", _nothing)
    with pytest.raises(RunTaken):
        pointer.move(store, _latest(1892, 1, "old"), _nothing)
    with pytest.raises(RunTaken):
        pointer.claim(store, 1, "old", _nothing)
    assert pointer.read(store) == claimed


def test_a_claim_between_look_and_write_of_the_earlier_life() -> None:
    """It had looked, and was held up; its write comes after the claim, and is refused by the store."""
    store = FaultyStore()
    pointer.move(store, _latest(1800, 1, "old"), _nothing)
    claimed: list[Latest | None] = []

    def late() -> None:
        if not claimed:
            claimed.append(None)
            claimed[0] = pointer.claim(store, 2, "new", _nothing)

    with pytest.raises(RunTaken):
        pointer.move(store, _latest(1892, 1, "old"), late)
    assert pointer.read(store) == claimed[0]


@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_of_many_that_claim_one_generation_one_has_it(tmp_path: Path, kind: str) -> None:
    """Ten at once: exactly one goes on, nine are told that the run is taken, and the pointer is the one's."""
    store: Store = MemoryStore() if kind == "memory" else DirectoryStore(tmp_path / "run")
    pointer.move(store, _latest(1, 1, "old"), _nothing)
    assert store.is_conditional
    start = threading.Barrier(10)
    won: list[str] = []
    lost: list[str] = []

    def claim(writer: str) -> None:
        start.wait()
        try:
            pointer.claim(store, 2, writer, _nothing)
        except RunTaken:
            lost.append(writer)
        else:
            won.append(writer)

    threads = [threading.Thread(target=claim, args=(f"w{number}",)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    latest = pointer.read(store)
    assert (len(won), len(lost)) == (1, 9)
    assert latest is not None
    assert latest.writer == won[0]
