# SPDX-License-Identifier: Apache-2.0
"""The failure table: what each damage, absence and trouble does to the next start."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from spotwatch.errors import ConfigError, StoreError
from spotwatch.train.parts import crc32
from spotwatch.train.registry.manifest import File, Latest, Manifest
from spotwatch.train.stores.directory import DirectoryStore

from .conftest import Daemon, Make, dirs, train

_SOURCE = random.Random(11)
LUCK = [_SOURCE.random() for _ in range(40)]
"""What a run without a break would have drawn."""


@pytest.fixture
def run(tmp_path: Path, make: Make) -> Path:
    """Return the store of a run that saved at 10, 20 and 30."""
    random.seed(11)
    ck, counter = make(every_steps=10)
    train(ck, counter, 30)
    assert ck.exit_code == 0
    random.seed(12)
    return tmp_path / "store" / "run"


def _newest(run: Path) -> Path:
    name: str = json.loads((run / "LATEST").read_bytes())["dir"]
    return run / name


def _flip(path: Path, at: int = -3) -> None:
    body = bytearray(path.read_bytes())
    body[at] ^= 4
    path.write_bytes(body)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def _replace(path: Path) -> Path:
    path.unlink()
    return path


def _rewrite(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest and seal it again, and the pointer with it."""
    path = directory / "manifest.json"
    row = json.loads(path.read_bytes())
    change(row)
    zero = json.dumps(row | {"crc32": "00000000"}, separators=(",", ":")).encode() + b"\n"
    body = zero[:10] + crc32(zero).encode() + zero[18:]
    path.write_bytes(body)
    pointer = Latest.from_bytes((directory.parent / "LATEST").read_bytes())
    (directory.parent / "LATEST").write_bytes(replace(pointer, manifest_crc=crc32(body)).to_bytes())


def _without_parts(directory: Path) -> None:
    def change(row: dict[str, Any]) -> None:
        for file in row["files"]:
            del file["parts"], file["part_bytes"]

    _rewrite(directory, change)


def _claiming(directory: Path, size_bytes: int) -> None:
    parts = ["00000000"] * (size_bytes // 2**30)
    file = File.of("rank-00000.safetensors", size_bytes, 2**30, parts)
    _rewrite(directory, lambda row: row.update(files=[asdict(file)]))


def _flatten(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.touch()


DAMAGES: dict[str, tuple[Callable[[Path], object], int]] = {
    "none": (lambda run: None, 30),
    "bit flip in a tensor file": (lambda run: _flip(_newest(run) / "rank-00000.safetensors"), 20),
    "truncated file": (lambda run: _cut(_newest(run) / "rank-00000.safetensors"), 20),
    "longer file": (lambda run: _lengthen(_newest(run) / "rank-00000.safetensors"), 20),
    "missing file": (lambda run: (_newest(run) / "rank-00000.safetensors").unlink(), 20),
    "bit flip in the manifest": (lambda run: _flip(_newest(run) / "manifest.json", 200), 20),
    "unreadable manifest": (lambda run: (_newest(run) / "manifest.json").write_bytes(b"{"), 20),
    "empty manifest": (lambda run: (_newest(run) / "manifest.json").write_bytes(b""), 20),
    "missing manifest": (lambda run: (_newest(run) / "manifest.json").unlink(), 20),
    "missing LATEST": (lambda run: (run / "LATEST").unlink(), 30),
    "unreadable LATEST": (lambda run: (run / "LATEST").write_bytes(b"step-30"), 30),
    "empty LATEST": (lambda run: (run / "LATEST").write_bytes(b""), 30),
    "huge LATEST": (lambda run: (run / "LATEST").write_bytes(b"x" * 100_000), 30),
    "dangling LATEST": (
        lambda run: (run / "LATEST").write_bytes(
            b'{"version":1,"dir":"step-000000099-g1-gone","manifest_crc":"0","generation":1,"step":99}'
        ),
        30,
    ),
    "LATEST is a directory": (lambda run: _replace(run / "LATEST").mkdir(), 30),
    "LATEST is a directory with files": (
        lambda run: (_replace(run / "LATEST") / "a" / "b").mkdir(parents=True),
        30,
    ),
    "LATEST is a loop of links": (lambda run: _replace(run / "LATEST").symlink_to("LATEST"), 30),
    "LATEST is a pipe": (lambda run: os.mkfifo(_replace(run / "LATEST")), 30),
    "a manifest that is a directory": (lambda run: _replace(_newest(run) / "manifest.json").mkdir(), 20),
    "a file that is a loop of links": (
        lambda run: _replace(_newest(run) / "rank-00000.safetensors").symlink_to("rank-00000.safetensors"),
        20,
    ),
    "a file that is a pipe": (lambda run: os.mkfifo(_replace(_newest(run) / "rank-00000.safetensors")), 20),
    "a checkpoint that is a file": (lambda run: _flatten(_newest(run)), 20),
    "a manifest of another checkpoint": (
        lambda run: (_newest(run) / "manifest.json").write_bytes(
            (run / next(p.name for p in run.glob("step-000000010-*")) / "manifest.json").read_bytes()
        ),
        20,
    ),
    "a pickle in place of the tensors": (
        lambda run: (_newest(run) / "rank-00000.safetensors").write_bytes(b"\x80\x04cos\nsystem\n"),
        20,
    ),
    "a foreign directory": (lambda run: (run / "step-zzz").mkdir(), 30),
    "a manifest without the checksums of parts": (lambda run: _without_parts(_newest(run)), 20),
    "a manifest that claims a terabyte": (lambda run: _claiming(_newest(run), 2**40), 20),
    "a manifest that claims nothing": (lambda run: _claiming(_newest(run), 0), 20),
    "a quarantine by mistake": (lambda run: (_newest(run) / "quarantine.json").write_bytes(b""), 20),
}


SILENT = {"none", "missing LATEST", "a foreign directory", "a quarantine by mistake"}
"""Nothing was damaged: there is nothing to say."""


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage(run: Path, make: Make, daemon: Daemon, damage: str) -> None:
    """Each damage costs at most the checkpoint that it hit, is said, and the run goes on exactly."""
    deed, step = DAMAGES[damage]
    deed(run)
    ck, counter = make(every_steps=10)
    assert ck.resume() == step
    assert counter.steps == list(range(step))
    assert bool(daemon.status().error) is (damage not in SILENT)
    with ck:
        for number in range(step, 40):
            counter.train(number)
            ck.step(number + 1)
    again, last = make()
    assert again.resume() == 40
    assert last.steps == list(range(40))
    assert last.luck == LUCK


def test_all_bad_is_a_refusal(run: Path, make: Make) -> None:
    """When nothing verifies, the run does not start over by itself, and the message says what to do."""
    for name in run.glob("step-*/rank-00000.safetensors"):
        _flip(name)
    ck, counter = make()
    with pytest.raises(StoreError, match="SPOTWATCH_ALLOW_FRESH=1") as caught:
        ck.resume()
    assert str(caught.value).count("checksum") == 3
    assert counter.steps == []


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_one_may_insist(run: Path, make: Make, environ: dict[str, str], how: str) -> None:
    """A fresh start is possible when asked for, outranks the old checkpoints, and is then resumed from."""
    for name in run.glob("step-*/rank-00000.safetensors"):
        _flip(name)
    if how == "variable":
        environ["SPOTWATCH_ALLOW_FRESH"] = "1"
    ck, counter = make(every_steps=10, allow_fresh=how == "argument")
    assert train(ck, counter, 10) == 10
    environ.pop("SPOTWATCH_ALLOW_FRESH", None)
    again, counter = make()
    assert again.resume() == 10


def test_dangling_latest_and_nothing_else_is_a_refusal(tmp_path: Path, make: Make) -> None:
    """A pointer proves that there was work; its absence is no fresh run."""
    run = tmp_path / "store" / "run"
    run.mkdir(parents=True)
    (run / "LATEST").write_bytes(
        b'{"version":1,"dir":"step-000000099-g1-gone","manifest_crc":"0","generation":1,"step":99}'
    )
    with pytest.raises(StoreError, match="start"):
        make()[0].resume()


def test_a_first_save_that_died_is_a_fresh_run(tmp_path: Path, make: Make) -> None:
    """A directory without a manifest was never a checkpoint."""
    orphan = tmp_path / "store" / "run" / "step-000000010-g1-dead"
    orphan.mkdir(parents=True)
    (orphan / "rank-00000.safetensors").write_bytes(b"half")
    ck, counter = make(every_steps=10)
    assert ck.resume() == 0
    with ck:
        counter.train(0)
        ck.save(1)
    assert not orphan.exists()


class _Moody(DirectoryStore):
    """A store that refuses the first so many reads."""

    def __init__(self, root: Path, refusals: int) -> None:
        super().__init__(root)
        self.refusals = refusals

    def get(self, key: str, *, most_bytes: int) -> bytes:
        if self.refusals:
            self.refusals -= 1
            raise StoreError("403 Forbidden")
        return super().get(key, most_bytes=most_bytes)


def test_trouble_is_asked_again(run: Path, make: Make) -> None:
    """A refusal that passes costs a pause."""
    ck, _ = make(_Moody(run, 1), patience_seconds=10.0)
    assert ck.resume() == 30


def test_trouble_that_stays_is_never_a_fresh_run(run: Path, make: Make) -> None:
    """403 or no network at all ends in an error, even for one who insists on a fresh start."""
    for refusals in (1, 10**9):
        ck, counter = make(_Moody(run, refusals), allow_fresh=True)
        with pytest.raises(StoreError, match="403 Forbidden"):
            ck.resume()
        assert counter.steps == []
        assert ck.exit_code == 76


class _Noisy(DirectoryStore):
    """A store whose first so many downloads of tensors have a bit turned over."""

    noise = 0

    def read_into(self, key: str, begin: int, target: memoryview) -> None:
        super().read_into(key, begin, target)
        if self.noise:
            self.noise -= 1
            target[0] ^= 1


def test_a_bit_lost_on_the_way_costs_nothing(run: Path, make: Make) -> None:
    """A checkpoint is read a second time before an older one is taken."""
    store = _Noisy(run)
    store.noise = 1
    assert make(store)[0].resume() == 30
    assert store.noise == 0


def test_a_network_that_turns_bits_over_loses_no_run(run: Path, make: Make) -> None:
    """All in quarantine by the fault of one bad cable: on a sound one the newest is gone on from."""
    store = _Noisy(run)
    store.noise = 10**9
    with pytest.raises(StoreError, match="none can be used"):
        make(store)[0].resume()
    assert len(list(run.glob("step-*/quarantine.json"))) == 3
    ck, counter = make(every_steps=10)
    assert train(ck, counter, 40) == 40
    assert counter.luck == LUCK
    assert {path.parent.name[:14] for path in run.glob("step-*/quarantine.json")} <= {
        "step-000000010",
        "step-000000020",
    }


def test_another_runs_checkpoint_is_not_taken(run: Path, make: Make) -> None:
    """A sound checkpoint of another run, copied here with a pointer to it, is refused."""
    newest = _newest(run)
    foreign = replace(Manifest.from_bytes((newest / "manifest.json").read_bytes()), run_id="other")
    (newest / "manifest.json").write_bytes(foreign.to_bytes())
    pointer = Latest.from_bytes((run / "LATEST").read_bytes())
    (run / "LATEST").write_bytes(replace(pointer, manifest_crc=crc32(foreign.to_bytes())).to_bytes())
    assert make()[0].resume() == 20


def test_many_ranks_are_not_guessed_at(run: Path, make: Make, environ: dict[str, str]) -> None:
    """Ranks that are not connected with each other are refused before anything is read."""
    environ["WORLD_SIZE"] = "2"
    with pytest.raises(ConfigError, match="2 ranks"):
        make()[0].resume()
    assert make(world_size=1)[0].resume() == 30


def test_dirs_after_all(run: Path, tmp_path: Path) -> None:
    """Three saves are three directories of the documented form."""
    assert [name[:14] for name in dirs(tmp_path)] == ["step-000000010", "step-000000020", "step-000000030"]
