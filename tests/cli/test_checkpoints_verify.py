# SPDX-License-Identifier: Apache-2.0
"""`checkpoints verify` finds every damaged byte, says where, and what a resume would do; it marks none."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path

import pytest

from spotwatch.cli.checkpoints.verify import BAD, REMOVED, _Check
from spotwatch.train.parts import crc32
from spotwatch.train.registry.listing import QUARANTINE
from spotwatch.train.registry.manifest import LATEST, MANIFEST, Latest

from .checkpoint_runs import (
    RUN,
    checkpoints,
    directory_of,
    everything,
    file_of,
    flip,
    leave_unfinished,
    registry_of,
    train,
)

torch = pytest.importorskip("torch")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the store of a run of four steps, the third one unhealthy."""
    train(tmp_path / "store", 4, sick=3)
    return tmp_path / "store" / RUN


def test_latest_and_its_parent_are_checked(root: Path) -> None:
    """Without a name these two; both verify, and the bytes and the rate are told."""
    told = checkpoints("verify", root, "--json")
    assert told.code == 0
    document = told.document
    assert [one["dir"] for one in document["checkpoints"]] == [
        directory_of(root, 4).name,
        directory_of(root, 2).name,
    ]
    assert {one["status"] for one in document["checkpoints"]} == {"verified"}
    assert document["size_bytes"] == file_of(root, 4).stat().st_size + file_of(root, 2).stat().st_size
    assert document["ok"] is True
    assert document["resume"] == {"dir": directory_of(root, 4).name, "verified": True}
    text = checkpoints("verify", root)
    assert "MB/s" in text.out
    assert text.err == ""


def test_all_or_those_named(root: Path) -> None:
    """Unhealthy ones too; what is unfinished only when it is named."""
    half = leave_unfinished(root, 9, 1)
    document = checkpoints("verify", root, "--all", "--json").document
    assert [one["dir"][:14] for one in document["checkpoints"]] == [
        f"step-{step:09d}" for step in (4, 3, 2, 1)
    ]
    named = checkpoints("verify", root, "1", directory_of(root, 3).name, "LATEST", "1", "--json").document
    assert [one["dir"][:14] for one in named["checkpoints"]] == [f"step-{step:09d}" for step in (1, 3, 4)]
    told = checkpoints("verify", root, half.name)
    assert told.code == 1
    assert "UNFINISHED" in told.out
    assert checkpoints("verify", root, "1", "--all").code == 2


@pytest.mark.parametrize("at", [0, 100, -1])
def test_a_flipped_bit_is_found(root: Path, at: int) -> None:
    """At the begin, in the middle, at the end: file and offset are named, and what a resume would take."""
    flip(file_of(root, 4), at)
    before = everything(root)
    told = checkpoints("verify", root)
    assert told.code == 1
    name = directory_of(root, 4).name
    assert f"{name}: BAD - {name}/rank-00000.safetensors" in told.out
    assert "from 0 on" in told.out
    assert f"would go on from {directory_of(root, 2).name} (verified just now)" in told.out
    assert everything(root) == before


@pytest.mark.parametrize(
    ("damage", "wanted"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "its manifest says"),
        (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "its manifest says"),
        (lambda path: path.unlink(), "is missing"),
        (lambda path: (path.parent / MANIFEST).write_bytes(b"{"), "not the one that LATEST names"),
        (lambda path: (path.parent / MANIFEST).unlink(), "no manifest"),
        (lambda path: flip(path.parent / MANIFEST, 300), "not the one that LATEST names"),
    ],
)
def test_other_damage_is_found(root: Path, damage: object, wanted: str) -> None:
    """Cut, lengthened, gone, without a manifest or with a damaged one."""
    assert callable(damage)
    damage(file_of(root, 4))
    told = checkpoints("verify", root, "--all", "--json")
    assert told.code == 1
    (bad,) = [one for one in told.document["checkpoints"] if one["status"] != "verified"]
    assert (bad["dir"], bad["status"]) == (directory_of(root, 4).name, "bad")
    assert wanted in bad["problem"]
    assert told.document["resume"] == {"dir": directory_of(root, 2).name, "verified": True}


def test_a_pointer_to_nothing_is_bad(root: Path) -> None:
    """It is looked for, not found, and nothing is made in its place, not even by marking it."""
    gone = Latest(dir="step-000000009-g1-feed", manifest_crc="00000000", step=9, generation=1)
    (root / LATEST).write_bytes(gone.to_bytes())
    before = everything(root)
    told = checkpoints("verify", root, "--quarantine", "--json")
    assert told.code == 1
    assert [one["status"] for one in told.document["checkpoints"]] == ["bad"]
    assert told.document["resume"] == {"dir": directory_of(root, 4).name, "verified": False}
    assert everything(root) == before


def test_an_unreadable_pointer_is_bad(root: Path) -> None:
    """What a resume would take instead is checked, and the answer is no all the same."""
    (root / LATEST).write_bytes(b"{")
    told = checkpoints("verify", root)
    assert told.code == 1
    assert "LATEST: not JSON" in told.out
    assert f"would go on from {directory_of(root, 4).name} (verified just now)" in told.out


@pytest.mark.parametrize("is_all", [True, False])
def test_what_was_not_checked_has_a_manifest_at_least(root: Path, is_all: bool) -> None:
    """A resume goes behind one that `list` calls damaged, and so does the answer."""
    for step in (4, 2):
        flip(file_of(root, step), 50)
    manifest = directory_of(root, 1) / MANIFEST
    manifest.unlink()
    os.mkfifo(manifest)
    told = checkpoints("verify", root, *(["--all"] if is_all else []), "--json")
    assert told.code == 1
    assert told.document["resume"] is None


def test_when_nothing_verifies_a_resume_would_refuse(root: Path) -> None:
    """An unhealthy one is no way out, however sound."""
    for step in (1, 2, 4):
        flip(file_of(root, step), 50)
    told = checkpoints("verify", root, "--all")
    assert told.code == 1
    assert "would refuse to start" in told.out
    assert f"{directory_of(root, 3).name}: verified" in told.out


def test_bad_ones_are_marked_when_asked_to(root: Path) -> None:
    """Only those, with the reason; what is marked is tried last, here as in a resume."""
    flip(file_of(root, 4), 50)
    told = checkpoints("verify", root, "--quarantine")
    assert "it is in quarantine now" in told.out
    assert (directory_of(root, 4) / QUARANTINE).exists()
    assert not (directory_of(root, 2) / QUARANTINE).exists()
    rows = checkpoints("list", root, "--json").document["checkpoints"]
    assert rows[0]["state"] == "quarantined"
    assert "from 0 on" in rows[0]["note"]
    after = checkpoints("verify", root, "2", "--json").document
    assert after["resume"] == {"dir": directory_of(root, 2).name, "verified": True}


def test_one_of_a_later_version_is_neither_good_nor_marked(root: Path) -> None:
    """A resume goes behind none such, so nothing else is promised."""
    path = directory_of(root, 4) / MANIFEST
    row = json.loads(path.read_bytes())
    row["crc32"], row["version"] = "00000000", 2
    body = json.dumps(row, separators=(",", ":")).encode() + b"\n"
    sealed = body.replace(b"00000000", crc32(body).encode(), 1)
    path.write_bytes(sealed)
    latest = Latest.from_bytes((root / LATEST).read_bytes())
    (root / LATEST).write_bytes(replace(latest, manifest_crc=crc32(sealed)).to_bytes())
    told = checkpoints("verify", root, "--quarantine", "--all", "--json")
    assert told.code == 1
    assert told.document["checkpoints"][0]["status"] == "later"
    assert "later spotwatch" in told.document["checkpoints"][0]["problem"]
    assert told.document["resume"] is None
    assert not (directory_of(root, 4) / QUARANTINE).exists()


def test_what_is_pruned_meanwhile_is_not_called_bad(root: Path) -> None:
    """A trainer may remove a checkpoint under our hands; half of one that is left is bad."""
    registry = registry_of(root)
    check = _Check(registry, registry.latest(), registry.checkpoints(), is_marking=True)
    for path in directory_of(root, 1).iterdir():
        path.unlink()
    file_of(root, 2).unlink()
    one, two = (found.dir for found in sorted(check.found, key=lambda found: found.order)[:2])
    assert check.run(one).status == REMOVED
    assert check.run(two).status == BAD


def test_nothing_complete_is_nothing_to_verify(tmp_path: Path) -> None:
    """It is said, with exit 1, for a run whose first save died."""
    (tmp_path / RUN).mkdir()
    leave_unfinished(tmp_path / RUN, 1, 1)
    for words in ([], ["--all"]):
        told = checkpoints("verify", tmp_path / RUN, *words)
        assert told.code == 1
        assert "no complete checkpoint yet" in told.err


def test_progress_is_shown_on_a_terminal_only(root: Path) -> None:
    """On one there is a bar, beside the document on standard output; through a pipe not a word."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 100, 0, 0))
    argv = [sys.executable, "-m", "spotwatch", "checkpoints", "verify", str(root), "--json"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=theirs, check=True)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert json.loads(done.stdout)["ok"] is True
    assert "100%" in shown
    assert checkpoints("verify", root).err == ""
