# SPDX-License-Identifier: Apache-2.0
"""Checkpoints by many ranks: any number goes on with them, in any form; what does not fit is refused."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.train.launching import ranks

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(300)

_KINDS = {"plain": 1, "ddp": 2, "fsdp": 2, "fsdp4": 4}
Told = list[dict[str, Any]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Told]]:
    """Return a function that returns where a kind of run has saved after 3 steps, and how it went on."""
    base = tmp_path_factory.mktemp("saved")
    made: dict[str, Told] = {}

    def make(kind: str) -> tuple[Path, Told]:
        root = base / kind
        if kind not in made:
            made[kind] = ranks(
                *(_KINDS[kind], "sharded_run.py", base / f"{kind}.out", kind.rstrip("4"), f"root={root}"),
                *("train=3", "save=3", "note=saved", "train=3#on", "note=on"),
                *("begin=10", "restore", "note=back", "train=3#again", "note=again"),
            )
        return root, made[kind]

    return make


@pytest.fixture(scope="module")
def restored(
    tmp_path_factory: pytest.TempPathFactory, saved: Callable[[str], tuple[Path, Told]]
) -> Callable[[str], Told]:
    """Return a function that returns what a kind of run holds after restoring those of each kind."""
    made: dict[str, Told] = {}

    def make(kind: str) -> Told:
        if kind not in made:
            verbs = []
            for source in _KINDS:
                verbs += ["begin=10", f"root={saved(source)[0]}", f"restore=#{source}", f"note={source}"]
            out = tmp_path_factory.mktemp("restored") / "out"
            made[kind] = ranks(_KINDS[kind], "sharded_run.py", out, kind.rstrip("4"), *verbs)
        return made[kind]

    return make


def shared(note: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a note that is the same on all ranks."""
    sums = {name: crc for name, crc in note["tensors"].items() if name.startswith(("model/", "optimizer/"))}
    return note | {"tensors": sums}


@pytest.mark.parametrize("target", _KINDS)
@pytest.mark.parametrize("source", _KINDS)
def test_any_form_goes_on_with_any(
    source: str,
    target: str,
    saved: Callable[[str], tuple[Path, Told]],
    restored: Callable[[str], Told],
) -> None:
    """Model, optimizer, schedule and position are the same on 1, 2 and 4 ranks, plain, DDP and FSDP2.

    BatchNorm's statistics, which differ by rank, are each rank's own; in another form, the first one's.
    """
    wanted = [shared(rank["note=saved"]) for rank in saved(source)[1]]
    assert len(wanted[0]["tensors"]) == 27
    for number, rank in enumerate(restored(target)):
        assert shared(rank[f"note={source}"]) == wanted[number if source == target else 0]


@pytest.mark.parametrize("kind", _KINDS)
def test_the_same_number_of_ranks_goes_on_bit_by_bit(
    kind: str, saved: Callable[[str], tuple[Path, Told]]
) -> None:
    """Each rank has its own chance and buffers back: all is as in a run that was not interrupted."""
    told = saved(kind)[1]
    for rank in told:
        assert rank["note=back"] == rank["note=saved"]
        assert rank["train=3#again"] == rank["train=3#on"]
        assert rank["note=again"] == rank["note=on"]
    for name in ("generator", "model/1.running_mean"):
        assert len({rank["note=saved"]["tensors"][name] for rank in told}) == len(told)


@pytest.mark.parametrize(("source", "target"), [("plain", "ddp"), ("ddp", "fsdp4")])
def test_ranks_that_were_not_there_have_chance_of_their_own(
    source: str,
    target: str,
    saved: Callable[[str], tuple[Path, Told]],
    restored: Callable[[str], Told],
) -> None:
    """Ranks that were saved have their own back; no two of the others draw the same numbers."""
    names = ("generator", "rng/torch")
    before = [[rank["note=saved"]["tensors"][name] for name in names] for rank in saved(source)[1]]
    now = [[rank[f"note={source}"]["tensors"][name] for name in names] for rank in restored(target)]
    assert now[: len(before)] == before
    assert len({tuple(rank) for rank in now}) == len(now)


def test_one_rank_may_hold_dtensors(saved: Callable[[str], tuple[Path, Told]], tmp_path: Path) -> None:
    """An FSDP2 program goes on with one rank what two have saved, and two go on with what it saves then."""
    root = f"root={tmp_path / 'root'}"
    shutil.copytree(saved("fsdp")[0], tmp_path / "root")
    verbs = (
        root,
        "restore",
        "note=back",
        "train=1",
        "save=4",
        "note=on",
        "begin=10",
        "restore=#own",
        "note=own",
    )
    (one,) = ranks(1, "sharded_run.py", tmp_path / "one", "fsdp", *verbs)
    assert shared(one["note=back"]) == shared(saved("fsdp")[1][0]["note=saved"])
    assert one["note=own"] == one["note=on"]
    for rank in ranks(2, "sharded_run.py", tmp_path / "two", "fsdp", root, "restore", "note=back"):
        assert shared(rank["note=back"]) == shared(one["note=on"])


def test_ddp_shares_the_writing(saved: Callable[[str], tuple[Path, Told]]) -> None:
    """What all ranks hold is written once, about half of it by each of two."""
    sizes = [rank["save=3"]["size_bytes"] for rank in saved("ddp")[1]]
    whole = saved("plain")[1][0]["save=3"]["size_bytes"]
    # Each file has its header, and each rank its own random state of 10 kB beside 2 kB of tensors.
    own = 2 * 5056 + 4 * 8
    assert sum(size - own for size in sizes) < 2 * (whole - own)
    assert max(sizes) - min(sizes) < 1000


@pytest.fixture
def damaged(tmp_path: Path, saved: Callable[[str], tuple[Path, Told]]) -> Path:
    """Return a copy of a checkpoint by two ranks; one bit of the second rank's file has turned over."""
    root = tmp_path / "root"
    shutil.copytree(saved("fsdp")[0], root)
    (file,) = root.glob("step-*/rank-00001.safetensors")
    body = bytearray(file.read_bytes())
    body[-2000] ^= 1
    file.write_bytes(body)
    return root


def test_nothing_is_touched_unless_all_is_verified(damaged: Path, tmp_path: Path) -> None:
    """A bit that turned over in what one rank reads is refused by all, and every tensor is as before."""
    told = ranks(
        *(2, "sharded_run.py", tmp_path / "out", "fsdp", "train=1", "note=before"),
        *(f"root={damaged}", "restore", "note=after"),
    )
    for rank in told:
        assert rank["restore"].startswith("CheckpointCorrupt: ")
        assert "rank-00001.safetensors" in rank["restore"]
        assert rank["note=after"] == rank["note=before"]


def test_another_model_is_refused_untouched(
    saved: Callable[[str], tuple[Path, Told]], tmp_path: Path
) -> None:
    """A model of another width is told which tensors differ, before any changes."""
    told = ranks(
        *(2, "sharded_run.py", tmp_path / "out", "ddp", "begin=12", "note=before"),
        *(f"root={saved('fsdp')[0]}", "restore", "note=after"),
    )
    for rank in told:
        assert rank["restore"].startswith("StoreError: ")
        assert "model/0.weight has the shape (10, 6), and (12, 6) here" in rank["restore"]
        assert rank["note=after"] == rank["note=before"]


def test_ranks_must_track_the_same(tmp_path: Path) -> None:
    """Plain tensors that differ by rank would be lost, for one rank writes for all: all ranks say so."""
    told = ranks(2, "sharded_run.py", tmp_path / "out", "ddp", "skew")
    for rank in told:
        assert rank["skew"].startswith("ConfigError: rank 1 tracks other models than rank 0")


def test_models_that_differ_by_rank_are_said_once(tmp_path: Path) -> None:
    """Of local SGD's models one would come back on all ranks: the first rank says so, and what to do."""
    verbs = ("train=1", "save=1", "log=alike", "differ", "save=2", "save=3", "log=apart")
    first, second = ranks(2, "sharded_run.py", tmp_path / "out", "ddp", f"root={tmp_path / 'root'}", *verbs)
    assert first["log=alike"] == second["log=alike"] == second["log=apart"] == []
    (said,) = first["log=apart"]
    assert said.startswith(
        "the model differs by rank: model/0.bias, model/0.weight, model/1.bias and 3 more;"
    )
    assert 'ck.track(**{f"model{rank}": model, f"optimizer{rank}": optimizer})' in said


def test_a_position_that_differs_by_rank_is_not_divided_anew(tmp_path: Path) -> None:
    """With as many ranks each has its own back; with others it is refused, unless the user insists."""
    root = f"root={tmp_path / 'root'}"
    verbs = ("uneven", "train=1", "save=1", "begin=10", "restore", "note=back")
    two = ranks(2, "sharded_run.py", tmp_path / "two", "fsdp", root, *verbs)
    assert [rank["note=back"]["at"] for rank in two] == [1, 101]
    verbs = ("note=before", "restore", "note=after", "insist", "restore=#insisting", "note=insisting")
    (one,) = ranks(1, "sharded_run.py", tmp_path / "one", "plain", root, *verbs)
    assert one["restore"].startswith("StoreError: position differed on each of the 2 ranks")
    assert "allow_resize=True" in one["restore"]
    assert one["note=after"] == one["note=before"]
    assert one["note=insisting"]["at"] == 1


def test_a_pickle_in_the_store_is_never_opened(
    saved: Callable[[str], tuple[Path, Told]], tmp_path: Path
) -> None:
    """Files in torch's own form, which run code when they are loaded, lie in the directory and do nothing."""
    root = tmp_path / "root"
    shutil.copytree(saved("fsdp")[0], root)
    (directory,) = root.glob("step-*")
    sign = tmp_path / "opened"
    for name in (".metadata", "__0_0.distcp", "rank-00000.pt"):
        (directory / name).write_bytes(pickle.dumps(Bomb(str(sign))))
    (told,) = ranks(1, "sharded_run.py", tmp_path / "out", "plain", f"root={root}", "restore")
    assert told["restore"] == directory.name
    assert not sign.exists()
    pickle.loads((directory / ".metadata").read_bytes()).close()
    assert sign.exists()  # it would have worked


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self.path, "w"))
