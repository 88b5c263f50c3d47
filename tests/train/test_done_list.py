# SPDX-License-Identifier: Apache-2.0
"""DoneList in one process: what a batch's author writes, and what comes of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotwatch.errors import CheckpointCorrupt, ConfigError, StoreError, StoreMissing
from spotwatch.train import Checkpointer, DoneList
from spotwatch.train.done import log as done_log

from .conftest import Counter, train
from .done_help import New, do, outputs, segments
from .faulty import FaultyStore

pytestmark = pytest.mark.usefixtures("handlers_come_back")


def test_a_batch_in_three_lives(store: FaultyStore, new: New, environ: dict[str, str]) -> None:
    """Each goes on where the one before was left; left by `break` it is durable, and not finished."""
    first, second, third = new(), new(), new()
    assert do(first, range(10), most=3) == [0, 1, 2]
    assert do(second, range(10), most=4) == [3, 4, 5, 6]
    assert do(third, range(10)) == [7, 8, 9]
    assert [first.exit_code, second.exit_code, third.exit_code] == [75, 75, 0]
    assert outputs(store, environ) == {item: {"of": item} for item in range(10)}
    assert len(third) == 10
    assert 3 in third
    assert do(new(), range(10)) == []


def test_one_list_is_entered_again(store: FaultyStore, new: New, environ: dict[str, str]) -> None:
    """It reads anew what is done, by others too."""
    done = new()
    assert do(done, range(10), most=3) == [0, 1, 2]
    assert do(new(), range(5)) == [3, 4]
    assert do(done, range(10)) == [5, 6, 7, 8, 9]
    assert done.exit_code == 0
    assert sorted(outputs(store, environ)) == list(range(10))


def test_batches_and_keys(store: FaultyStore, new: New, environ: dict[str, str]) -> None:
    """Items come in lists, the last one shorter; a key that comes twice counts once, within a list too."""
    items = [{"id": f"é{number % 7}"} for number in range(12)]
    done = new()
    sizes = []
    with done:
        for batch in done.batches(items, 3, key=lambda item: item["id"]):
            sizes.append(len(batch))
            done.add_many((item["id"], b"\0bytes") for item in batch)
    assert sizes == [3, 3, 1]
    assert outputs(store, environ) == {f"é{number}": b"\0bytes" for number in range(7)}


def test_a_generator_will_do_for_one_share(new: New) -> None:
    """Items need not be in memory."""
    assert do(new(), (number for number in range(5))) == [0, 1, 2, 3, 4]


def test_several_shares_need_items_again(new: New) -> None:
    """And say so before anything is done; a function that begins anew will do."""
    done = new(shares=3)
    with done, pytest.raises(ConfigError, match="a generator, which can be gone through once"):
        next(done.todo(number for number in range(5)))
    assert sorted(do(new(), lambda: iter(range(5)))) == [0, 1, 2, 3, 4]


def test_shares_stay_as_they_are(new: New, environ: dict[str, str], store: FaultyStore) -> None:
    """Another number would let two workers do one item; none takes what there is."""
    do(new(shares=3), range(10), most=2)
    with pytest.raises(ConfigError, match="shares=2: the list memory:// is worked on in 3"):
        new(shares=2).__enter__()
    assert len(do(new(), range(10))) == 8
    assert sorted(outputs(store, environ)) == list(range(10))


def test_an_output_that_cannot_be_stored_loses_nothing(
    store: FaultyStore, new: New, environ: dict[str, str]
) -> None:
    """The error names its key, and what was added before is durable."""
    done = new()

    def run() -> None:
        with done:
            for item in done.todo(range(5)):
                done.add(item, object() if item == 2 else item)

    with pytest.raises(ConfigError, match="output of key 2"):
        run()
    assert done.exit_code == 76
    assert outputs(store, environ) == {0: 0, 1: 1}


def test_an_item_that_fails_loses_nothing(store: FaultyStore, new: New, environ: dict[str, str]) -> None:
    """Whatever the program raises, finished outputs are whole."""
    done = new(every_items=1000)

    def run() -> None:
        with done:
            for item in done.todo(range(5)):
                done.add(item, 1 / (3 - item))

    with pytest.raises(ZeroDivisionError):
        run()
    assert sorted(outputs(store, environ)) == [0, 1, 2]


def test_what_was_taken_and_not_added_is_offered_again(new: New, caplog: pytest.LogCaptureFixture) -> None:
    """It is not finished without them: 75, and the log says how many; None passes over one for good."""
    done = new()
    with done:
        for item in done.todo(range(6)):
            if item % 2:
                done.add(item, item)
    assert done.exit_code == 75
    assert "3 items were offered and not added" in caplog.text
    again = new()
    taken = []
    with again:
        for item in again.todo(range(6)):
            taken.append(item)
            again.add(item, None)
    assert taken == [0, 2, 4]
    assert again.exit_code == 0


def test_misuse_is_refused(new: New) -> None:
    """Each with what to do instead."""
    done = new()
    with pytest.raises(ConfigError, match="with done"):
        done.add("a", 1)
    with pytest.raises(ConfigError, match="with done"):
        next(done.todo(["a"]))
    with done:
        with pytest.raises(ConfigError, match="outside the loop"):
            done.add("a", 1)
        with pytest.raises(ConfigError, match="more than every_items=4"):
            next(done.batches(["a"], 5))
        with pytest.raises(ConfigError, match="key='id': wants a function"):
            next(done.todo([{"id": "a"}], key="id"))  # type: ignore[arg-type]  # that is the point
        with pytest.raises(ConfigError, match="entered already"):
            done.__enter__()
        for item in done.todo(["a", "b"]):
            done.add(item, 1)
            with pytest.raises(ConfigError, match="has an output already"):
                done.add(item, 2)
            with pytest.raises(ConfigError, match=r"key 7 is a whole number.*such as 'a'"):
                done.add(7, 2)
    assert done.exit_code == 0


def test_two_loops_at_once_are_refused(new: New) -> None:
    """The second one ends the first."""
    done = new()
    with done:
        first = done.todo(range(4))
        next(first)
        next(done.todo(range(4)))
        with pytest.raises(ConfigError, match="end that first"):
            next(first)


@pytest.mark.parametrize(
    "options",
    [
        {"every_items": 0},
        {"every_seconds": 0},
        {"shares": 0},
        {"shares": 5000},
        {"lease_seconds": 0.5},
        {"give_up_after": 0},
    ],
)
def test_numbers_that_make_no_sense(new: New, options: dict[str, Any]) -> None:
    """Are refused where they are given."""
    with pytest.raises(ConfigError):
        new(**options)


def test_other_inputs_under_one_run_are_told(new: New, caplog: pytest.LogCaptureFixture) -> None:
    """So are keys that are all the same; both are allowed."""
    do(new(), range(10))
    do(new(), range(100, 103))
    assert "at least 10 keys that are not among these 3 items" in caplog.text
    do(new(), range(50), key=lambda item: item % 13)
    assert "at least 34 of 50 items had a key that another has" in caplog.text


def test_a_run_of_checkpoints_is_no_list(tmp_path: Path, environ: dict[str, str]) -> None:
    """Outputs do not go between checkpoints."""
    ck = Checkpointer(tmp_path / "store", run_id="run", every_steps=1, environ=environ)
    counter = Counter()
    ck.track(counter=counter)
    train(ck, counter, 2)
    with pytest.raises(ConfigError, match="holds checkpoints of a training"):
        DoneList(tmp_path / "store", run_id="run", environ=environ).__enter__()


def test_a_list_without_its_beginning_is_no_fresh_one(store: FaultyStore, new: New) -> None:
    """LIST is put back, never begun anew beside outputs."""
    do(new(shares=2), range(10))
    body = store.objects.pop("LIST")
    with pytest.raises(StoreError, match=r'LIST is gone.*"shares": 2'):
        new().__enter__()
    store.objects["LIST"] = b"nonsense"
    with pytest.raises(CheckpointCorrupt, match="LIST is no list"):
        new().__enter__()
    store.objects["LIST"] = body
    assert do(new(), range(10)) == []


@pytest.mark.parametrize("deed", ["read LIST", "list ", "read 00000001.jsonl", "put_if LIST"])
def test_a_store_that_refuses_is_never_a_fresh_start(store: FaultyStore, new: New, deed: str) -> None:
    """403 ends the start with an error, whatever it meets."""
    if deed != "put_if LIST":
        do(new(), range(10), most=2)
    before = dict(store.objects)
    store.fail_at = deed
    done = new()
    with pytest.raises(StoreError, match="403 Forbidden"):
        done.__enter__()
    assert done.exit_code == 76
    assert store.objects == before


def test_there_is_nothing_to_read(store: FaultyStore, environ: dict[str, str]) -> None:
    """A reader says so, rather than that nothing is done."""
    with pytest.raises(StoreMissing, match="no list was begun there"):
        list(DoneList.outputs(store, "batch", environ=environ))


def test_a_damaged_segment_is_named_and_its_items_done_again(
    store: FaultyStore, new: New, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """From then on it does not count, whatever is read of it later."""
    do(new(every_items=1), range(6))
    key = segments(store)[2]
    sound = store.objects[key]
    store.objects[key] = sound[:-5]
    with pytest.raises(CheckpointCorrupt, match="1 segments cannot be read"):
        outputs(store, environ)
    assert do(new(every_items=1), range(6)) == [2]
    assert f"{key}: its checksum does not match; its items are done again" in caplog.text
    assert outputs(store, environ) == {item: {"of": item} for item in range(6)}
    store.objects[key] = sound
    assert outputs(store, environ) == {item: {"of": item} for item in range(6)}
    assert do(new(), range(6)) == []


def test_a_segment_that_is_gone_is_done_again(store: FaultyStore, new: New, environ: dict[str, str]) -> None:
    """Somebody removed it: the numbers have a gap."""
    do(new(every_items=1), range(6))
    del store.objects[segments(store)[2]]
    with pytest.raises(CheckpointCorrupt, match="verify=True"):
        outputs(store, environ)
    assert do(new(), range(6)) == [2]
    assert outputs(store, environ) == {item: {"of": item} for item in range(6)}


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let indexes cover few segments."""
    monkeypatch.setattr(done_log, "GROUP", 4)


def test_indexes_spare_the_next_start(
    store: FaultyStore, new: New, environ: dict[str, str], small_groups: None
) -> None:
    """It reads a few objects for many segments, and finds the same keys."""
    do(new(every_items=1), range(40))
    assert [key for key in store.objects if "index-00000001-00000016" in key]
    assert [key for key in store.objects if "index-00000033-00000036" in key]
    store.deeds.clear()
    assert do(new(), range(41)) == [40]
    reads = [deed for deed in store.deeds if deed.startswith("read ") and ".jsonl" in deed]
    assert len(reads) < 16
    assert sorted(outputs(store, environ)) == list(range(41))


def test_an_index_that_is_damaged_costs_only_time(store: FaultyStore, new: New, small_groups: None) -> None:
    """The segments are read instead."""
    do(new(every_items=1), range(40))
    for key in list(store.objects):
        if "index-00000017" in key:
            store.objects[key] = store.objects[key][:50]
        elif "index-00000001-00000016" in key:
            del store.objects[key]
    assert do(new(), range(40)) == []


def test_damage_behind_an_index_is_found_by_size_or_on_demand(
    store: FaultyStore, new: New, environ: dict[str, str], small_groups: None
) -> None:
    """A start sees what is missing or too short; what looks whole is read with `verify`."""
    do(new(every_items=1), range(40))
    short, flipped = segments(store)[5], segments(store)[9]
    store.objects[short] = store.objects[short][:-3]
    body = bytearray(store.objects[flipped])
    body[-4] ^= 1
    store.objects[flipped] = bytes(body)
    assert do(new(), range(40)) == [5]
    with pytest.raises(CheckpointCorrupt, match="verify=True"):
        outputs(store, environ)
    assert do(new(verify=True), range(40)) == [9]
    assert outputs(store, environ) == {item: {"of": item} for item in range(40)}
    assert do(new(), range(40)) == []


def test_a_listing_that_lags_hides_nothing(
    store: FaultyStore, new: New, environ: dict[str, str], small_groups: None
) -> None:
    """Numbers have no gaps: what no listing shows is asked for."""
    do(new(every_items=1), range(22))
    real = store.list

    def stale() -> Iterator[Any]:
        return (entry for entry in real() if not re.search(r"000000(1[89]|2\d)\.jsonl", entry.key))

    store.list = stale  # type: ignore[method-assign]
    assert sorted(outputs(store, environ)) == list(range(22))
    assert do(new(), range(23)) == [22]
    assert sorted(outputs(store, environ)) == list(range(23))


def test_on_a_store_without_conditional_writes(new: New, environ: dict[str, str]) -> None:
    """Segments have names of their own, and all else is the same."""
    plain = FaultyStore(is_conditional=False)
    do(new(url=plain, lease_seconds=1.0), range(10), most=3)
    assert do(new(url=plain), range(10)) == list(range(3, 10))
    assert sorted(outputs(plain, environ)) == list(range(10))


def test_the_environment_outranks_the_program(tmp_path: Path, environ: dict[str, str]) -> None:
    """A rehearsal never touches a real list."""
    other = environ | {"SPOTWATCH_CHECKPOINT_URL": str(tmp_path / "drill"), "SPOTWATCH_RUN_ID": "rehearsal"}
    done = DoneList(tmp_path / "real", run_id="batch", environ=other)
    with done:
        for item in done.todo(["a"]):
            done.add(item, "x")
    assert not (tmp_path / "real").exists()
    assert dict(DoneList.outputs(tmp_path / "real", "batch", environ=other)) == {"a": "x"}
    assert (tmp_path / "drill" / "rehearsal" / "LIST").exists()


def test_nothing_is_overwritten(store: FaultyStore, new: New, small_groups: None) -> None:
    """But leases: every other object is written once."""
    for most in (3, 9, 30):
        do(new(every_items=2), range(40), most=most)
    puts = [deed.partition(" ")[2] for deed in store.deeds if deed.startswith("put") and "LEASE" not in deed]
    assert len(puts) == len(set(puts))
    assert not [deed for deed in store.deeds if deed.startswith("delete")]
