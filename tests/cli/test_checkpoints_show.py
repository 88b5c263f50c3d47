# SPDX-License-Identifier: Apache-2.0
"""`checkpoints show` tells everything about one checkpoint, whatever lies there, and trusts none of it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotwatch.cli.checkpoints.lease import history, line, state_of
from spotwatch.train.lease.form import LEASE, Claim
from spotwatch.train.lease.history import History
from spotwatch.train.registry.manifest import MANIFEST

from .checkpoint_runs import (
    RUN,
    STRANGER,
    checkpoints,
    directory_of,
    file_of,
    leave_unfinished,
    lost,
    manifest_of,
    registry_of,
    seal,
)

torch = pytest.importorskip("torch")


def claim(**facts: Any) -> Claim:
    """Return a lease of a process of another machine."""
    return Claim(
        **{
            "owner": STRANGER,
            "generation": 3,
            "beat": 7,
            "taken_at": "2026-11-29T10:00:00.000Z",
            "renewed_at": "2026-11-29T11:00:00.000Z",
            "ttl_seconds": 60.0,
            "lived_seconds": 3600.0,
            **facts,
        }
    )


def test_show_tells_everything_about_one(root: Path) -> None:
    """Manifest, files with their parts, tensors by size, tracked objects, lease and lives."""
    document = checkpoints("show", root, "--json").document
    shown, manifest = document["checkpoint"], document["checkpoint"]["manifest"]
    assert (shown["step"], shown["state"], shown["role"], shown["problems"]) == (3, "complete", "latest", [])
    assert manifest["parent"] == directory_of(root, 2).name
    assert manifest["objects"] == ["weights"]
    assert manifest["versions"]["spotwatch"]
    (file,) = manifest["files"]
    assert file["found_bytes"] == file["size_bytes"] == file_of(root, 3).stat().st_size
    assert len(file["parts"]) == 1
    tensors = shown["tensors"]
    by_name = {one["name"]: one for one in tensors["largest"]}
    assert by_name["weights/weight"] == {
        "name": "weights/weight",
        "dtype": "F32",
        "shape": [1000],
        "size_bytes": 4000,
        "files": ["rank-00000.safetensors"],
    }
    assert by_name["weights/bias"]["shape"] == [10, 2]
    assert tensors["count"] == len(by_name)
    sizes = [one["size_bytes"] for one in tensors["largest"]]
    assert sizes == sorted(sizes, reverse=True)
    assert document["lives"]["lives"][-1]["ended"] == "finished"
    text = checkpoints("show", root).out
    for words in ("complete, latest", "tracked: weights", "weights/weight", "1000", "Lives: 1", "auto"):
        assert words in text
    assert max(map(len, text.splitlines()[1:])) <= 110


def test_show_takes_a_step_or_a_directory(root: Path) -> None:
    """Of two lives that reached one step the later one is meant; a third way to say it there is not."""
    name = directory_of(root, 2).name
    for word in ("2", "000000002", name):
        assert checkpoints("show", root, word, "--json").document["checkpoint"]["dir"] == name
    for word in ("9", "step-000000009-g1-feed", "../x", "\x1b[2J"):
        told = checkpoints("show", root, word)
        assert told.code == 1
        assert "there is no checkpoint" in told.err
        assert "\x1b" not in told.err


def test_of_two_saves_of_one_step_the_later_life_is_meant(root: Path) -> None:
    """Two of one life cannot be told apart by a number, and one must be named."""
    later = leave_unfinished(root, 2, 5)
    assert checkpoints("show", root, "2", "--json").document["checkpoint"]["dir"] == later.name
    (root / "step-000000002-g5-twin").mkdir()
    (root / "step-000000002-g5-twin" / "x").write_bytes(b"1")
    told = checkpoints("show", root, "2")
    assert told.code == 2
    assert "twin" in told.err


def test_show_of_a_damaged_one_tells_what_is_left(root: Path) -> None:
    """Exit 1, and what is wrong: a file gone or cut, a manifest that cannot be read, none at all."""
    file_of(root, 3).unlink()
    file_of(root, 2).write_bytes(file_of(root, 2).read_bytes()[:-1])
    (directory_of(root, 1) / MANIFEST).write_bytes(b"{")
    leave_unfinished(root, 4, 1)
    told = {step: checkpoints("show", root, str(step), "--json") for step in (1, 2, 3, 4)}
    assert [one.code for one in told.values()] == [1, 1, 1, 1]
    problems = {step: " ".join(one.document["checkpoint"]["problems"]) for step, one in told.items()}
    assert "checksum" in problems[1]
    assert "the manifest says" in problems[2]
    assert "is missing" in problems[3]
    for step in told:
        assert checkpoints("show", root, str(step)).out


def test_a_hostile_store_does_not_move_the_cursor(root: Path) -> None:
    """What a manifest, a quarantine or a tensor's name brings along is shown as text."""
    evil = "\x1b[2J\u202e\nsudo"
    manifest = manifest_of(root, 3)
    head = json.dumps({evil: {"dtype": evil, "shape": [1], "data_offsets": [0, 4]}}).encode()
    path = file_of(root, 3)
    path.write_bytes((len(head).to_bytes(8, "little") + head).ljust(path.stat().st_size, b" "))
    seal(root, replace(manifest, versions={evil: evil}, writer=evil))
    registry_of(root).quarantine(directory_of(root, 2).name, evil)
    for words in (["list"], ["show"], ["list", "--json"], ["show", "--json"], ["show", "2"]):
        told = checkpoints(words[0], root, *words[1:])
        assert told.code == 0 or words == ["show", "2"]
        assert "\x1b" not in told.out
        assert "\u202e" not in told.out
        assert not any(each.startswith("sudo") for each in told.out.splitlines())


@pytest.mark.parametrize(
    "head",
    [
        b"\xff" * 8,
        (10).to_bytes(8, "little") + b"[1,2,3,4,5",
        (2).to_bytes(8, "little") + b"[]",
        (23).to_bytes(8, "little") + b'{"w":{"dtype":"F32"}}  ',
    ],
)
def test_a_head_that_is_none_is_a_problem(root: Path, head: bytes) -> None:
    """It is one line and exit 1, and the rest is shown."""
    path = file_of(root, 3)
    path.write_bytes(head + path.read_bytes()[len(head) :])
    told = checkpoints("show", root, "--json")
    assert told.code == 1
    assert "list of its tensors" in told.document["checkpoint"]["problems"][0]
    assert told.document["checkpoint"]["manifest"]["objects"] == ["weights"]


def test_sharded_tensors_are_read_from_the_catalogue(root: Path) -> None:
    """Pieces add up to the whole; what belongs to one rank alone comes under its file."""
    catalogue: Any = {
        "tensors": {
            "model/w": {"dtype": "BF16", "shape": [4, 8], "pieces": [[[0, 0], [4, 8], 0, 100, 164]]},
        },
        "own": [{"rng/torch": ["U8", [16], 164, 180]}],
    }
    seal(root, replace(manifest_of(root, 3), tensors=catalogue))
    shown = checkpoints("show", root, "--json").document["checkpoint"]["tensors"]
    assert [(t["name"], t["dtype"], t["shape"], t["size_bytes"]) for t in shown["largest"]] == [
        ("model/w", "BF16", [4, 8], 64),
        ("rng/torch", "U8", [16], 16),
    ]
    catalogue["tensors"]["model/w"]["pieces"] = [[[0], [1], 9, 0, 4]]
    seal(root, replace(manifest_of(root, 3), tensors=catalogue))
    assert checkpoints("show", root).code == 1


def test_without_torch_or_boto3_a_directory_is_shown(root: Path) -> None:
    """Whoever looks at a run needs no trainer's machine."""
    code = (
        "import sys; sys.modules['torch'] = sys.modules['boto3'] = None\n"
        "from spotwatch.cli import cli\n"
        "for deed in ('list', 'show', 'verify'):\n"
        "    cli(['checkpoints', deed, sys.argv[1], '--json'], standalone_mode=False)\n"
        "    print(end='\\0')\n"
    )
    argv = [sys.executable, "-c", code, str(root)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert [json.loads(line)["run_id"] for line in done.stdout.split("\0")[:-1]] == [RUN] * 3


def test_how_often_to_save_follows_from_the_lives(root: Path) -> None:
    """The lives are counted as a trainer counts them, and a stall of one's own is taken."""
    lives = History((lost(3600.0), lost(1800.0)))
    (root / LEASE).write_bytes(claim(history=lives, released="stopped", lived_seconds=600.0).to_bytes())
    document = checkpoints("show", root, "--stall", "2s", "--json").document["lives"]
    assert [life["ended"] for life in document["lives"]] == ["lost", "lost", "stopped"]
    mean = (4 * 3600 + 6000) / 3
    assert document["reclaim_every_seconds"] == pytest.approx(mean)
    assert document["auto"] == [
        {"stall_seconds": 2.0, "interval_seconds": pytest.approx((2 * 2 * mean) ** 0.5)}
    ]
    assert "3, 2 lost without notice" in checkpoints("show", root).out


def test_the_lease_is_told_in_one_line() -> None:
    """Free, left behind, perhaps held, unreadable, none; nobody is called alive who was not seen to be."""
    from spotwatch.train.lease.owner import Owner  # noqa: PLC0415 - for this process only

    here = Owner.here()
    dead = replace(here, start_ticks=here.start_ticks + 1)
    states = {
        "none": (None, ""),
        "unreadable": (None, "LEASE is not a JSON object"),
        "free": (claim(released="stopped"), ""),
        "held": (claim(), ""),
        "gone": (claim(owner=dead), ""),
    }
    assert {state_of(*told): name for name, told in states.items()} == {name: name for name in states}
    assert history(*states["gone"]).lives[-1].ended == "lost"
    assert history(*states["held"]).lives[-1].ended == ""
    assert history(*states["none"]).lives == ()
    assert line({"state": "none"}) == "Lease: none"


def test_an_unreadable_lease_does_not_hide_the_rows(root: Path) -> None:
    """It is said, in its line."""
    (root / LEASE).write_bytes(b"\x1b{")
    told = checkpoints("list", root)
    assert told.code == 0
    assert "Lease: unreadable" in told.out
