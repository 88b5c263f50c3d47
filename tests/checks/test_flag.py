# SPDX-License-Identifier: Apache-2.0
"""The flag between two users: made by us, removed by the trainer, or known beforehand not to be."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwatch.checks import Finding, Result
from spotwatch.checks.flag import judge_flag, judge_sight, may_remove
from spotwatch.checks.places import judge_runtime_dir, judge_state_dir, may_write
from spotwatch.targets import Proc
from spotwatch.targets._proc import read_row
from tests.checks.bench import Bench, named
from tests.families import NOBODY, needs_root

OTHER = 54321


@pytest.fixture
def shared() -> Iterator[Path]:
    """Give a directory that every user can reach."""
    path = Path(tempfile.mkdtemp(prefix="spotwatch-check-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def facts(mode: int, uid: int = 0, gid: int = 0) -> os.stat_result:
    """Return what `stat` would say of a directory."""
    return os.stat_result((stat.S_IFDIR | mode, 1, 1, 2, uid, gid, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("folder", "file_uid", "uid", "gids", "expected"),
    [
        (facts(0o1777), 0, 7, {7}, False),  # /tmp, and the flag is root's
        (facts(0o1777), 7, 7, {7}, True),  # /tmp, and the flag was given away
        (facts(0o1777), 0, 0, {0}, True),
        (facts(0o1777, uid=7), 0, 7, {7}, True),  # sticky, but the directory is the user's own
        (facts(0o2770, gid=7), 0, 5, {7}, True),  # by the group
        (facts(0o2770, gid=7), 0, 5, {5}, False),
        (facts(0o755), 0, 5, {5}, False),
        (facts(0o700, uid=5), 0, 5, {5}, True),
        (facts(0o070, uid=5, gid=5), 0, 5, {5}, False),  # the owner's bits count for the owner
    ],
)
def test_removal_is_told_from_modes(
    folder: os.stat_result, file_uid: int, uid: int, gids: set[int], expected: bool
) -> None:
    """As unlink(2) has it: the directory must be writable, and a sticky one asks whose the file is."""
    assert may_remove(folder, file_uid, uid, frozenset(gids)) is expected


def test_writing_needs_both_bits() -> None:
    """A directory that may be written but not searched is of no use."""
    assert not may_write(facts(0o720, gid=7), 5, frozenset({7}))
    assert may_write(facts(0o730, gid=7), 5, frozenset({7}))


def judged(flag: Path, trainer: int, given: int | None) -> Finding:
    """Return whether that user could remove the flag."""
    lines = judge_flag(
        flag,
        trainer=(trainer, trainer),
        given=None if given is None else (given, given),
        is_made_later=False,
    )
    (line,) = named(list(lines), "flag.remove")
    return line


@needs_root
@pytest.mark.parametrize(
    ("mode", "gid", "given", "result"),
    [
        (0o1777, 0, NOBODY, "ok"),  # /tmp, given to the trainer
        (0o1777, 0, None, "fail"),  # /tmp, kept by root
        (0o1777, 0, OTHER, "fail"),  # /tmp, given to somebody else
        (0o2770, NOBODY, None, "ok"),  # by the group
        (0o2770, 0, NOBODY, "fail"),  # given away in a directory that stays closed
    ],
)
def test_removal_is_really_tried(mode: int, gid: int, given: int | None, result: str, shared: Path) -> None:
    """As root we become the trainer's user and remove a flag: the system decides, not our idea of it."""
    folder = shared / "flags"
    folder.mkdir()
    os.chown(folder, 0, gid)
    folder.chmod(mode)
    line = judged(folder / "checkpoint-now", NOBODY, given)
    assert line.result == result, line
    assert ("flag.owner" in line.mend) is (result == "fail")
    assert list(folder.iterdir()) == []


@needs_root
def test_closed_parent_is_found_by_trying(shared: Path) -> None:
    """The modes of the flag's own directory are fine, but the trainer cannot get there."""
    folder = shared / "closed" / "flags"
    folder.mkdir(parents=True)
    folder.chmod(0o1777)
    folder.parent.chmod(0o700)
    line = judged(folder / "checkpoint-now", NOBODY, NOBODY)
    assert line.result is Result.FAIL, line


@needs_root
async def test_owner_that_is_not_the_trainer(bench: Bench, shared: Path) -> None:
    """flag.owner names one user, the trainer runs as another: found before it matters."""
    os.chmod(shared, 0o1777)  # noqa: PTH101 - Path's would count as blocking the loop
    bench.family.start(bench.family.trainer(), trainers=1, env={"TRAIN_UID": str(NOBODY)})
    toml = f"""
    [flag]
    path = "{shared}/checkpoint-now"
    owner = "{OTHER}:{OTHER}"
    [[target]]
    process = '{bench.family.pattern}'
    """
    (line,) = named(await bench.check(toml), "flag.remove")
    assert line.result is Result.FAIL
    assert f"uid {NOBODY}" in line.found
    assert f'flag.owner = "{NOBODY}:' in line.mend


@needs_root
def test_unknown_trainer_in_a_sticky_directory(shared: Path) -> None:
    """Nobody to give it to: only root could remove it from /tmp."""
    shared.chmod(0o1777)
    lines = list(judge_flag(shared / "flag", trainer=None, given=None, is_made_later=False))
    (line,) = named(lines, "flag.remove")
    assert (line.result, "set flag.owner" in line.mend) == (Result.WARN, True)


def test_flag_that_cannot_be_made(tmp_path: Path) -> None:
    """/proc takes no files from anyone, also not from root."""
    del tmp_path
    (line,) = judge_flag(Path("/proc/checkpoint-now"), trainer=None, given=None, is_made_later=False)
    assert (line.name, line.result) == ("flag.create", Result.FAIL)


def proc_of(pid: int) -> Proc:
    """Return the identity of a running process."""
    row = read_row(pid)
    assert row is not None
    return row.proc


def test_same_directory_is_seen(bench: Bench) -> None:
    """A trainer beside us sees what we see."""
    process = bench.family.start(bench.family.trainer(), trainers=1)
    (line,) = judge_sight(bench.runtime_dir, bench.runtime_dir, [proc_of(process.pid)], None)
    assert (line.result, "see the same" in line.found) == (Result.OK, True)


@needs_root
def test_private_tmp_is_seen_through(bench: Bench, shared: Path) -> None:
    """A trainer with a /tmp of its own would wait for ever for a flag in ours."""
    script = (
        f"mount -t tmpfs none {shared} && exec {sys.executable} {bench.family.script} {bench.family.said}"
    )
    try:
        process = bench.family.start(["unshare", "--mount", "sh", "-c", script], trainers=1)
    except FileNotFoundError:
        pytest.skip("no unshare here")
    (line,) = judge_sight(shared, bench.runtime_dir, [proc_of(process.pid)], None)
    assert (line.result, "sees another" in line.found) == (Result.FAIL, True)
    assert "leave flag.path out" in line.mend


@needs_root
def test_status_directory_closed_to_the_trainer(bench: Bench) -> None:
    """What the trainer cannot report does not count, and a running daemon has mended what it could."""
    lines = list(judge_runtime_dir(bench.runtime_dir, (NOBODY, NOBODY), daemon=1, is_owner_named=True))
    (line,) = named(lines, "runtime_dir.status")
    assert (line.result, "flag.owner" in line.mend) == (Result.FAIL, True)
    lines = list(judge_runtime_dir(bench.runtime_dir, (NOBODY, NOBODY), daemon=None, is_owner_named=True))
    assert named(lines, "runtime_dir.status") == []


@needs_root
def test_runtime_dir_of_a_stranger(bench: Bench) -> None:
    """Somebody else's directory is not believed."""
    os.chown(bench.runtime_dir, OTHER, OTHER)
    (line,) = judge_runtime_dir(bench.runtime_dir, None, daemon=None, is_owner_named=False)
    assert (line.result, f"belongs to uid {OTHER}" in line.found) == (Result.FAIL, True)


def test_directories_that_are_not_there_yet(tmp_path: Path) -> None:
    """What the daemon makes at its start is no mistake; what it cannot make is one."""
    (line,) = judge_runtime_dir(tmp_path / "run", None, daemon=None, is_owner_named=False)
    assert line.result is Result.OK
    (tmp_path / "file").touch()
    (line,) = judge_runtime_dir(tmp_path / "file" / "run", None, daemon=None, is_owner_named=False)
    assert line.result is Result.FAIL
    assert judge_state_dir(tmp_path / "state").result is Result.OK
    assert not (tmp_path / "run").exists()
