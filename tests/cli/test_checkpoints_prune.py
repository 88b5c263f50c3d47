# SPDX-License-Identifier: Apache-2.0
"""`checkpoints prune` removes what is old or broken, never what counts, and not under a trainer's hands."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spotwatch.cli.checkpoints import lease, prune
from spotwatch.cli.checkpoints.prune import make_plan
from spotwatch.errors import StoreError
from spotwatch.train.lease.form import LEASE
from spotwatch.train.registry.manifest import LATEST, MANIFEST, Latest

from .checkpoint_runs import (
    RUN,
    checkpoints,
    directory_of,
    everything,
    held_by_a_stranger,
    leave_unfinished,
    manifest_of,
    registry_of,
    seal,
    store_of,
    train,
)

torch = pytest.importorskip("torch")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the store of a run of five steps."""
    train(tmp_path / "store", 5)
    return tmp_path / "store" / RUN


def steps(root: Path) -> list[int]:
    """Return the steps whose directories are there."""
    return sorted(int(path.name[5:14]) for path in root.glob("step-*"))


def test_a_dry_run_removes_nothing_and_says_why(root: Path) -> None:
    """It asks nobody, and what it says is what a real one does."""
    before = everything(root)
    told = checkpoints("prune", root, "--dry-run", "--json")
    assert told.code == 0
    assert everything(root) == before
    document = told.document
    assert [(one["dir"], one["why"]) for one in document["condemned"]] == [
        (directory_of(root, 2).name, "older than the newest 3"),
        (directory_of(root, 1).name, "older than the newest 3"),
    ]
    assert (document["dry_run"], document["removed"]) == (True, [])
    assert "2 to remove" in checkpoints("prune", root, "--dry-run").out
    condemned = [one["dir"] for one in document["condemned"]]
    assert checkpoints("prune", root, "--yes", "--json").document["removed"] == condemned
    assert steps(root) == [3, 4, 5]
    assert "nothing to remove" in checkpoints("prune", root).out


def test_with_nobody_to_ask_it_wants_to_be_told(root: Path) -> None:
    """Through a pipe it is a usage error, and all is left as it was."""
    told = checkpoints("prune", root)
    assert told.code == 2
    assert "--yes" in told.err
    assert steps(root) == [1, 2, 3, 4, 5]
    assert checkpoints("prune", root, "--keep", "1", "--yes").code == 2
    assert steps(root) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("answer", "left"), [(b"n\n", [1, 2, 3, 4, 5]), (b"y\n", [3, 4, 5])])
def test_on_a_terminal_it_asks(root: Path, answer: bytes, left: list[int]) -> None:
    """Only a yes removes."""
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    argv = [sys.executable, "-m", "spotwatch", "checkpoints", "prune", str(root)]
    done = subprocess.run(argv, stdin=theirs, capture_output=True, text=True, check=False)
    os.close(theirs)
    os.close(ours)
    assert "Remove 2?" in done.stderr
    assert done.returncode == (0 if answer == b"y\n" else 1)
    assert steps(root) == left


def test_latest_and_its_parent_stay_whatever_their_age(root: Path) -> None:
    """A run that went back to an old step keeps that one and what it came from."""
    seal(root, replace(manifest_of(root, 2), parent=directory_of(root, 1).name))
    assert checkpoints("prune", root, "--keep", "2", "--yes").code == 0
    assert steps(root) == [1, 2, 4, 5]


@pytest.mark.parametrize("damage", ["pointer", "manifest", "gone"])
def test_without_knowing_what_counts_nothing_goes(root: Path, damage: str) -> None:
    """An unreadable LATEST, or one that names nothing sound, does not tell which parent must stay."""
    if damage == "pointer":
        (root / LATEST).write_bytes(b"{")
    elif damage == "manifest":
        (directory_of(root, 5) / MANIFEST).write_bytes(b"{")
    else:
        gone = Latest(dir="step-000000009-g1-feed", manifest_crc="00000000", step=9, generation=1)
        (root / LATEST).write_bytes(gone.to_bytes())
    told = checkpoints("prune", root, "--keep", "2", "--yes")
    assert told.code == 1
    assert f"{root.as_uri()}/LATEST: " in told.err
    assert "resume the run first, whose next save writes LATEST anew" in told.err
    assert steps(root) == [1, 2, 3, 4, 5]


def test_quarantined_ones_go_when_asked(root: Path) -> None:
    """However new, but for LATEST; without asking they stay as long as they are as new as what is kept."""
    for step in (4, 5):
        registry_of(root).quarantine(directory_of(root, step).name, "test")
    seal(root, replace(manifest_of(root, 5), parent=directory_of(root, 3).name))
    assert checkpoints("prune", root, "--yes").code == 0
    assert steps(root) == [1, 2, 3, 4, 5]
    told = checkpoints("prune", root, "--quarantined", "--yes", "--json").document
    assert [one["why"] for one in told["condemned"]] == ["it did not verify"]
    assert steps(root) == [1, 2, 3, 5]


def test_the_last_ones_are_not_removed_for_being_in_quarantine(root: Path) -> None:
    """A network that turns bits over brings sound ones there; without a good one they are all there is."""
    (root / LATEST).unlink()
    for step in range(1, 6):
        registry_of(root).quarantine(directory_of(root, step).name, "test")
    assert checkpoints("prune", root, "--quarantined", "--yes").code == 0
    assert steps(root) == [1, 2, 3, 4, 5]


def test_what_saves_that_died_left_goes_when_the_run_is_over(root: Path) -> None:
    """After a lease that was given back no save of its generation is under way."""
    leave_unfinished(root, 6, 1)
    leave_unfinished(root, 7, 2)
    told = checkpoints("prune", root, "--yes", "--keep", "9", "--json").document
    assert [one["why"] for one in told["condemned"]] == ["its save died on the way"]
    assert steps(root) == [1, 2, 3, 4, 5, 7]


def test_a_trainer_at_work_is_left_alone(root: Path) -> None:
    """Seen to renew its lease it has the run, and nothing goes; a look is free; --force insists."""
    leave_unfinished(root, 6, 1)
    with held_by_a_stranger(root, ttl_seconds=12.0):
        told = checkpoints("prune", root, "--yes")
        assert told.code == 1
        assert "far, pid 4711" in told.err
        assert "--force" in told.err
        assert steps(root) == [1, 2, 3, 4, 5, 6]
        assert checkpoints("prune", root, "--dry-run").code == 0
        assert checkpoints("prune", root, "--yes", "--force").code == 0
        assert steps(root) == [3, 4, 5, 6], "what may be a save under way is not touched by force either"


def test_a_trainer_that_died_is_waited_for_and_no_longer(root: Path) -> None:
    """Its lease is watched for its TTL; then the run is nobody's."""
    with held_by_a_stranger(root, ttl_seconds=0.3, is_renewed=False):
        told = checkpoints("prune", root, "--yes")
    assert told.code == 0
    assert "watching" in told.err
    assert steps(root) == [3, 4, 5]


def test_an_unreadable_lease_is_watched_too(root: Path) -> None:
    """It may be somebody's: only a change, or a minute without one, tells."""
    (root / LEASE).write_bytes(b"?")
    moments = iter(range(0, 10**6, 5))
    assert not lease.is_alive(store_of(root), sleep=lambda _: None, monotonic=lambda: float(next(moments)))
    written = iter(range(100))

    def write(_: float) -> None:
        if next(written) == 2:
            (root / LEASE).write_bytes(b"another")

    moments = iter(range(0, 10**6, 1))
    assert lease.is_alive(store_of(root), sleep=write, monotonic=lambda: float(next(moments)))


def test_a_run_that_goes_on_meanwhile_ends_the_pruning(root: Path) -> None:
    """A trainer that begins after the look may have gone back to any of them: it is asked before each."""
    registry = registry_of(root)
    plan = make_plan(registry, 2, 0, quarantined=False)
    assert len(plan.goes) == 3
    third = directory_of(root, 3).name
    removing: Iterator[str] = prune._remove(registry, plan)
    assert next(removing) == third
    train(root.parent, 6)
    with pytest.raises(StoreError, match="LATEST has moved"):
        next(removing)
    assert steps(root) == [1, 2, 4, 5, 6]
