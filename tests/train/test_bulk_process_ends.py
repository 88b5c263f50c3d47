# SPDX-License-Identifier: Apache-2.0
"""The uploader process and its trainer, as a user starts it: one ends with the other, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.train.bulk_help import is_gone, wait_for
from tests.train.s3_stand_in import S3StandIn

pytestmark = [pytest.mark.timeout(90), pytest.mark.usefixtures("made_up_keys")]


TRAINER = """
    import mmap, os, sys, time
    print("main", flush=True)
    from spotwatch.train.stores.pacing import Pace
    from spotwatch.train.parts import Held
    from spotwatch.train.stores.s3_bucket import Bucket
    from spotwatch.train.stores.uploader import ProcessBulk

    bulk = ProcessBulk(Bucket("bulk", {"endpoint_url": sys.argv[1]}), Pace(None), least_bytes=1)
    fd = os.memfd_create("body")
    os.ftruncate(fd, 200_000)
    body = Held(memoryview(mmap.mmap(fd, 200_000)), 65_536, fd)
    print(len(bulk.upload("key", body, lambda _: None)), bulk._process._child.pid, flush=True)
"""


def run_trainer(server: S3StandIn, tmp_path: Path, more: str = "") -> subprocess.Popen[str]:
    """Start a trainer as a user would, in a directory with a module of a name that boto3 needs."""
    script = tmp_path / "job" / "train.py"
    script.parent.mkdir()
    script.write_text(textwrap.dedent(TRAINER) + textwrap.dedent(more), encoding="utf-8")
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')", encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, str(script), server.url], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )


def read(trainer: subprocess.Popen[str]) -> list[str]:
    """Return the words of the next line."""
    assert trainer.stdout is not None
    return trainer.stdout.readline().split()


def test_the_process_ends_with_the_trainer_and_never_runs_its_script(
    server: S3StandIn, tmp_path: Path
) -> None:
    """Nobody closed it: the interpreter's end does, and the script was run once."""
    with run_trainer(server, tmp_path) as trainer:
        assert read(trainer) == ["main"]
        parts, pid = read(trainer)
        assert parts == "4"
        assert read(trainer) == []
        assert trainer.wait(30) == 0
    wait_for(lambda: is_gone(int(pid)))


def test_the_process_ends_when_the_trainer_is_killed_although_a_worker_lives(
    server: S3StandIn, tmp_path: Path
) -> None:
    """A forked worker holds the trainer's end of the socket; the process sees that its parent is gone."""
    fork = """
        worker = os.fork()
        if worker == 0:
            time.sleep(60)
            os._exit(0)
        print(worker, flush=True)
        time.sleep(60)
    """
    with run_trainer(server, tmp_path, fork) as trainer:
        read(trainer)
        pid = int(read(trainer)[1])
        worker = int(read(trainer)[0])
        try:
            assert not is_gone(pid)
            trainer.kill()
            wait_for(lambda: is_gone(pid))
            assert not is_gone(worker)
        finally:
            os.kill(worker, signal.SIGKILL)


def test_a_process_that_is_forked_gets_an_uploader_of_its_own(server: S3StandIn, tmp_path: Path) -> None:
    """The parent's goes on to serve the parent."""
    fork = """
        mine = bulk._process._child.pid
        child = os.fork()
        if child == 0:
            bulk.upload("other", body, lambda _: None)
            theirs = bulk._process._child.pid
            bulk.close()
            os._exit(3 if theirs != mine else 4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        bulk.upload("key", body, lambda _: None)
        assert bulk._process._child.pid == mine
        print("well", flush=True)
    """
    with run_trainer(server, tmp_path, fork) as trainer:
        read(trainer)
        read(trainer)
        assert read(trainer) == ["well"]
        assert trainer.wait(30) == 0
    assert set(server.objects) == {"key", "other"}
