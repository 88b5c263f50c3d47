# SPDX-License-Identifier: Apache-2.0
"""A pidfile, believed only where file and process agree: otherwise no signal to a wrong process."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spotwatch.config import TargetSettings
from spotwatch.errors import ActionError, ConfigError
from spotwatch.targets import Target, make_targets
from spotwatch.targets._pidfile import PidfileFinder
from spotwatch.targets._proc import read_row, read_table
from tests.families import NOBODY, Family, family, needs_root, wait_for


@pytest.fixture
def fam(tmp_path: Path) -> Iterator[Family]:
    """Give the test processes of its own."""
    with family(tmp_path) as one:
        yield one


@pytest.fixture
def pidfile(tmp_path: Path) -> Path:
    """Name a pidfile that does not exist yet."""
    return tmp_path / "train.pid"


def target_of(pidfile: Path, user: str = "") -> Target:
    """Return the target that a pidfile in the configuration makes."""
    (target,) = make_targets((TargetSettings(pidfile=str(pidfile), user=user),), None)
    return target


def write(pidfile: Path, text: str) -> None:
    """Write a pidfile, as the trainer's own start does."""
    pidfile.write_text(text)


async def test_the_process_named_is_told_once(fam: Family, pidfile: Path) -> None:
    """The way it is meant: found, owned, told, and gone."""
    process = fam.start(fam.trainer(), trainers=1)
    write(pidfile, f"{process.pid}\n")
    target = target_of(pidfile)
    assert target.label == f"pidfile {pidfile}"
    procs = target.find()
    assert [proc.pid for proc in procs] == [process.pid]
    assert target.owner() == (os.geteuid(), os.getegid())
    assert await target.stop(procs) == f"pidfile {pidfile}: SIGTERM to pid {process.pid}"
    assert process.wait() == 75
    assert await target.stop(procs) == f"pidfile {pidfile}: pid {process.pid} already gone"
    assert fam.told() == [process.pid]
    assert await target.start() == ""
    with pytest.raises(ActionError, match=f"names pid {process.pid}, which does not run"):
        target.find()


async def test_the_configured_signal_is_sent(fam: Family, pidfile: Path) -> None:
    """A trainer may save on another signal than SIGTERM."""
    process = fam.start(fam.trainer(), trainers=1)
    write(pidfile, str(process.pid))
    (target,) = make_targets((TargetSettings(pidfile=str(pidfile), signal="USR1"),), None)
    assert "SIGUSR1" in await target.stop(target.find())
    process.wait()
    assert fam.words("TOLD")[0][2] == "SIGUSR1"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected one pid above 1"),
        (b"0\n", "expected one pid above 1"),
        (b"1\n", "expected one pid above 1"),
        (b"-1\n", "expected one pid above 1"),
        (b"abc", "expected one pid above 1"),
        (b"0x10", "expected one pid above 1"),
        (b"12 13\n", "expected one pid above 1"),
        (b"1234\0", "expected one pid above 1"),
        ("\u0661\u0662".encode(), "expected one pid above 1"),
        (b"99999999999", "expected one pid above 1"),
        (b"9999999999", "does not run"),
        (b"1\n", "1 is the first process of a container"),
        (b"9" * (10 * 2**20), "bytes, more than 64"),
    ],
)
def test_what_is_no_pid_is_refused(pidfile: Path, content: bytes, message: str) -> None:
    """Empty, negative, zero, one, letters, several, a trailing NUL, other scripts' digits, ten megabytes."""
    pidfile.write_bytes(content)
    with pytest.raises(ActionError, match=message):
        target_of(pidfile).find()


def test_a_missing_file_is_said(pidfile: Path) -> None:
    """Not started yet, most often."""
    with pytest.raises(ActionError, match="cannot be read: No such file"):
        target_of(pidfile).find()


def test_links_folders_and_pipes_are_refused(fam: Family, pidfile: Path, tmp_path: Path) -> None:
    """Only a regular file is read, and none of these holds us up."""
    process = fam.start(fam.trainer(), trainers=1)
    real = tmp_path / "real.pid"
    real.write_text(str(process.pid))
    pidfile.symlink_to(real)
    with pytest.raises(ActionError, match="is a link"):
        target_of(pidfile).find()
    pidfile.unlink()
    pidfile.mkdir()
    with pytest.raises(ActionError, match="not a regular file"):
        target_of(pidfile).find()
    pidfile.rmdir()
    os.mkfifo(pidfile)
    with pytest.raises(ActionError, match="not a regular file"):
        target_of(pidfile).find()


def test_a_file_that_everyone_may_write_is_refused(fam: Family, pidfile: Path) -> None:
    """Anyone could have us stop anything."""
    process = fam.start(fam.trainer(), trainers=1)
    pidfile.write_text(str(process.pid))
    pidfile.chmod(0o666)
    with pytest.raises(ActionError, match="writable by everyone"):
        target_of(pidfile).find()
    pidfile.chmod(0o664)
    assert target_of(pidfile).find()


def test_a_reused_pid_is_refused(fam: Family, pidfile: Path) -> None:
    """A process younger than the file is not the one that the file was written for."""
    pidfile.write_text("placeholder")
    process = fam.start(fam.trainer(), trainers=1)
    pidfile.write_text(str(process.pid))
    assert target_of(pidfile).find()
    hour_ago = time.time() - 3600
    os.utime(pidfile, (hour_ago, hour_ago))
    with pytest.raises(ActionError, match=r"is 3[56]\d\d s older than the process.*reused"):
        target_of(pidfile).find()


def test_a_zombie_is_not_running(fam: Family, pidfile: Path) -> None:
    """It has exited; its parent only has not looked."""
    process = fam.start(fam.trainer(), trainers=1)
    pidfile.write_text(str(process.pid))
    process.kill()
    wait_for(lambda: (row := read_row(process.pid)) is not None and row.is_gone)
    with pytest.raises(ActionError, match="does not run"):
        target_of(pidfile).find()


def test_ourselves_and_who_started_us_are_refused(pidfile: Path) -> None:
    """A stale number may well be ours."""
    pidfile.write_text(str(os.getpid()))
    with pytest.raises(ActionError, match="never signalled: it is this daemon itself"):
        target_of(pidfile).find()
    if os.getppid() > 1:
        pidfile.write_text(str(os.getppid()))
        with pytest.raises(ActionError, match="this daemon was started by it"):
            target_of(pidfile).find()


def test_a_thread_is_refused(pidfile: Path) -> None:
    """A thread's number looks like a pid to everything but the kernel."""
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    try:
        pidfile.write_text(str(thread.native_id))
        with pytest.raises(ActionError, match="it is a thread"):
            target_of(pidfile).find()
    finally:
        go.set()
        thread.join()


def test_a_process_in_a_container_is_refused(fam: Family, pidfile: Path) -> None:
    """There the trainer writes its own number, which here is someone else's."""
    process = fam.start(fam.trainer(), trainers=1)
    pidfile.write_text(str(process.pid))
    table = read_table()
    table[process.pid] = replace(table[process.pid], inner_pid=7)
    with pytest.raises(ActionError, match="numbered otherwise in its container"):
        PidfileFinder(pidfile, None).heads(table)


def test_a_number_that_a_container_wrote_is_refused(fam: Family, pidfile: Path) -> None:
    """It is a process of ours as well, and another one: nobody may be signalled in its place."""
    process, inside = (fam.start(fam.trainer(), trainers=1) for _ in range(2))
    pidfile.write_text(str(process.pid))
    table = read_table()
    PidfileFinder(pidfile, None).heads(table)
    table[inside.pid] = replace(table[inside.pid], inner_pid=process.pid)
    with pytest.raises(ActionError, match=f"as pid {inside.pid} is numbered in its container"):
        PidfileFinder(pidfile, None).heads(table)


@needs_root
def test_nesting_is_seen_in_a_real_namespace(fam: Family) -> None:
    """A process below `unshare --pid` has two numbers."""
    if subprocess.run(["unshare", "--pid", "--fork", "true"], check=False).returncode != 0:
        pytest.skip("this machine gives no PID namespaces")
    fam.start(["unshare", "--pid", "--fork", *fam.trainer()], trainers=1)
    rows = [row for row in read_table().values() if row.argv == tuple(fam.trainer())]
    assert [row.is_nested for row in rows] == [True]
    assert fam.ready() != [rows[0].pid]
    os.kill(rows[0].pid, signal.SIGKILL)


@needs_root
def test_the_files_owner_must_be_trusted(fam: Family, pidfile: Path) -> None:
    """Root, we, or the trainer's own user: a stranger's file names a stranger's wish."""
    process = fam.start(fam.trainer(), trainers=1)
    pidfile.write_text(str(process.pid))
    os.chown(pidfile, NOBODY, NOBODY)
    with pytest.raises(ActionError, match=f"owned by uid {NOBODY}, who is neither"):
        target_of(pidfile).find()


@needs_root
async def test_a_trainer_of_another_user_is_told(fam: Family, pidfile: Path) -> None:
    """Its own pidfile counts, its user owns the flag, and another expected user is refused."""
    process = fam.start(fam.trainer(), trainers=1, env={"TRAIN_UID": str(NOBODY)})
    write(pidfile, str(process.pid))
    os.chown(pidfile, NOBODY, NOBODY)
    target = target_of(pidfile, user=str(NOBODY))
    procs = target.find()
    assert (procs[0].uid, procs[0].gid) == (NOBODY, NOBODY)
    assert target.owner() is not None
    with pytest.raises(ActionError, match=f"of uid {NOBODY}, expected uid 4242; set `user`"):
        target_of(pidfile, user="4242").find()
    await target.stop(procs)
    assert process.wait() == 75


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (TargetSettings(), "exactly one of unit, pidfile and process"),
        (TargetSettings(pidfile="/x", process="y"), "exactly one of"),
        (TargetSettings(pidfile="/x", signal="SIGKILL"), "cannot be handled"),
        (TargetSettings(pidfile="/x", signal="STOP"), "cannot be handled"),
        (TargetSettings(pidfile="/x", signal="SIGHELLO"), "is unknown"),
        (TargetSettings(pidfile="/x", user="no-such-user"), "is unknown on this machine"),
        (TargetSettings(process="("), "no regular expression"),
        (TargetSettings(process=".*"), "fits every command line"),
        (TargetSettings(unit="-H host"), "no unit name"),
    ],
)
def test_settings_that_name_nobody_are_refused(settings: TargetSettings, message: str) -> None:
    """Before anything starts, with its place."""
    with pytest.raises(ConfigError, match=rf"target\[0\]: .*{message}"):
        make_targets((settings,), None)


def test_all_wrong_settings_are_named_at_once() -> None:
    """One run is enough to see them all."""
    with pytest.raises(ConfigError) as caught:
        make_targets((TargetSettings(), TargetSettings(process="a"), TargetSettings(process="(")), None)
    assert [problem[:9] for problem in caught.value.problems] == ["target[0]", "target[2]"]
