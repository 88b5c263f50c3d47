# SPDX-License-Identifier: Apache-2.0
"""Large bodies by boto3 in a process of its own: what it sends, what it survives, and when it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwatch.errors import RunTaken, StoreError
from spotwatch.train.pacing import Pace
from spotwatch.train.parts import Held
from spotwatch.train.s3_bucket import Bucket
from spotwatch.train.uploader import ProcessBulk, environment
from tests.train.bulk_help import PART_BYTES, crcs_of, nothing, shared, use_keys, wait_for
from tests.train.s3_stand_in import Call, S3StandIn, refusal

KEY = "prefix/run/step-1/rank-00000.safetensors"

# Each starts a Python that imports boto3, on a machine that others use too.
pytestmark = pytest.mark.timeout(90)


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_keys(monkeypatch, tmp_path)


@pytest.fixture
def server() -> Iterator[S3StandIn]:
    """Return a server that works until told otherwise."""
    with S3StandIn() as stand_in:
        yield stand_in


@pytest.fixture
def bulk(server: S3StandIn) -> Iterator[ProcessBulk]:
    """Return what is tested; bodies of any size are worth it."""
    bulk = ProcessBulk(Bucket("bulk", {"endpoint_url": server.url}), Pace(None), least_bytes=1)
    yield bulk
    bulk.close()


def pid_of(bulk: ProcessBulk) -> int:
    """Return the process that is at work."""
    assert bulk._process is not None
    return bulk._process._child.pid


def is_gone(pid: int) -> bool:
    """Tell whether a process is no more, or only a remnant of one."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in ("Z", "X")


def test_a_body_arrives_bit_by_bit_and_the_process_is_used_again(
    server: S3StandIn, bulk: ProcessBulk
) -> None:
    """Two saves, the second larger: the objects, the checksums, progress, and one process."""
    bulk.prepare()
    pid = pid_of(bulk)
    for size in (5 * PART_BYTES + 7, 12 * PART_BYTES):
        body, told = shared(size, seed=size), list[int]()
        assert bulk.upload(f"{KEY}-{size}", body, told.append) == crcs_of(body)
        assert server.objects[f"{KEY}-{size}"] == bytes(body.view)
        assert told == sorted(told)
        assert told[-1] == size
    assert pid_of(bulk) == pid


def test_memory_that_has_grown_since_is_read_as_it_is_now(server: S3StandIn, bulk: ProcessBulk) -> None:
    """The buffer of saves is one descriptor, used again and grown."""
    body = shared(6 * PART_BYTES)
    assert body.fd is not None
    small = Held(body.view[: 2 * PART_BYTES + 1], PART_BYTES, body.fd)
    assert bulk.upload(KEY, small, nothing) == crcs_of(small)
    body.view[:3] = b"new"
    assert bulk.upload(KEY, body, nothing) == crcs_of(body)
    assert server.objects[KEY] == bytes(body.view)


def test_what_lies_in_no_shared_memory_or_is_small_is_left_to_the_store(server: S3StandIn) -> None:
    """No process is started for it."""
    bulk = ProcessBulk(Bucket("bulk", {"endpoint_url": server.url}), Pace(None))
    assert bulk.upload(KEY, Held(memoryview(bytearray(2**27)), 2**24), nothing) is None
    assert bulk.upload(KEY, shared(2**20), nothing) is None
    assert bulk.read_into(KEY, 0, memoryview(bytearray(1))) is False
    assert bulk._process is None


def test_a_process_that_is_killed_in_the_middle_is_replaced_and_the_body_sent_again(
    server: S3StandIn, bulk: ProcessBulk, caplog: pytest.LogCaptureFixture
) -> None:
    """As the kernel does when memory is short: the save still succeeds, and the log says what happened."""
    bulk.prepare()
    first = pid_of(bulk)

    def kill(call: Call) -> None:
        if call.part == 3:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)

    server.fault = kill
    body = shared(6 * PART_BYTES)

    assert bulk.upload(KEY, body, nothing) == crcs_of(body)
    assert server.objects[KEY] == bytes(body.view)
    assert pid_of(bulk) != first
    assert "the uploader process is gone" in caplog.text


def test_a_process_that_dies_each_time_is_an_error_and_nothing_hangs(
    server: S3StandIn, bulk: ProcessBulk
) -> None:
    """Two deaths end it; the next save gets a process again."""
    at_work: list[int] = []

    def kill(call: Call) -> None:
        if call.part == 2:
            at_work.append(pid_of(bulk))
            with contextlib.suppress(ProcessLookupError):
                os.kill(at_work[-1], signal.SIGKILL)

    server.fault = kill
    with pytest.raises(StoreError, match="has died 2 times; was it killed for lack of memory"):
        bulk.upload(KEY, shared(6 * PART_BYTES), nothing)
    assert len(set(at_work)) == 2
    assert server.objects == {}

    server.fault = lambda _: None
    assert bulk.upload(KEY, shared(6 * PART_BYTES), nothing)


def test_what_progress_raises_ends_the_upload_and_the_process_goes_on(
    server: S3StandIn, bulk: ProcessBulk
) -> None:
    """A lost lease in the middle: the parts removed, no object, and the same process for the next save."""
    held = threading.Event()

    def lost(_: int) -> None:
        if server.sent():
            held.set()
            raise RunTaken("another has gone on")

    def hold(call: Call) -> None:
        if call.part:
            held.wait(30)

    server.fault = hold
    with pytest.raises(RunTaken):
        bulk.upload(KEY, shared(40 * PART_BYTES), lost)
    assert (server.objects, server.uploads) == ({}, {})

    pid = pid_of(bulk)
    assert bulk.upload(KEY, shared(2 * PART_BYTES), nothing)
    assert pid_of(bulk) == pid


def test_a_process_that_is_stopped_does_not_hold_up_who_wants_to_leave(
    server: S3StandIn, bulk: ProcessBulk
) -> None:
    """It cannot be asked to end; it is ended, so that what it holds never becomes an object."""
    bulk.prepare()
    pid = pid_of(bulk)

    def stop(call: Call) -> None:
        if call.part == 1:
            os.kill(pid, signal.SIGSTOP)

    def leave(_: int) -> None:
        if server.sent(1):
            raise KeyboardInterrupt

    server.fault = stop
    with pytest.raises(KeyboardInterrupt):
        bulk.upload(KEY, shared(30 * PART_BYTES), leave)
    assert is_gone(pid)
    assert server.objects == {}


def test_a_refusal_is_told_as_the_store_put_it(server: S3StandIn, bulk: ProcessBulk) -> None:
    """Code and message cross from one process to the other."""
    server.fault = lambda call: refusal(403, "AccessDenied", "says the store") if call.part == 2 else None
    with pytest.raises(StoreError, match=f"cannot write s3://bulk/{KEY}: AccessDenied says the store"):
        bulk.upload(KEY, shared(4 * PART_BYTES), nothing)
    assert server.uploads == {}


def test_signals_meant_for_the_trainer_do_not_reach_an_upload(server: S3StandIn, bulk: ProcessBulk) -> None:
    """The last save is under way when the machine is taken back; every process of the group is told."""
    bulk.prepare()
    pid = pid_of(bulk)

    def tell(call: Call) -> None:
        if call.part == 2:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
                os.kill(pid, number)

    server.fault = tell
    body = shared(4 * PART_BYTES)
    assert bulk.upload(KEY, body, nothing) == crcs_of(body)
    assert pid_of(bulk) == pid
    assert os.getsid(pid) == pid


def test_the_process_keeps_the_pace(server: S3StandIn) -> None:
    """Three parts at two parts a second: the last may leave after one second."""
    bulk = ProcessBulk(Bucket("bulk", {"endpoint_url": server.url}), Pace(2 * PART_BYTES), least_bytes=1)
    begun = time.monotonic()
    bulk.upload(KEY, shared(3 * PART_BYTES), nothing)
    assert time.monotonic() - begun >= 0.9
    bulk.close()


def test_no_secret_is_in_arguments_and_no_rank_in_the_environment(
    server: S3StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other users read arguments; spotwatch's daemon takes a process with a rank for a trainer."""
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    options = {"endpoint_url": server.url, "aws_access_key_id": "KEY", "aws_secret_access_key": "very-secret"}
    bulk = ProcessBulk(Bucket("bulk", options), Pace(None), least_bytes=1)
    assert bulk.upload(KEY, shared(2 * PART_BYTES), nothing)

    proc = Path(f"/proc/{pid_of(bulk)}")
    assert b"very-secret" not in proc.joinpath("cmdline").read_bytes()
    given = proc.joinpath("environ").read_bytes()
    assert b"very-secret" not in given
    assert b"LOCAL_RANK" not in given
    assert b"TORCHELASTIC" not in given
    assert b"AWS_SECRET_ACCESS_KEY=" in given
    assert "Credential=KEY/" in server.sent(1)[0].headers["authorization"]
    bulk.close()


def test_the_environment_is_the_trainers_less_its_rank() -> None:
    """What boto3 needs stays; what a launcher sets goes."""
    given = environment(
        {"HOME": "/root", "AWS_PROFILE": "p", "RANK": "0", "WORLD_SIZE": "2", "ROLE_RANK": "0"}
    )
    assert given.pop("PYTHONPATH")
    assert given == {"HOME": "/root", "AWS_PROFILE": "p"}


TRAINER = """
    import mmap, os, sys, time
    print("main", flush=True)
    from spotwatch.train.pacing import Pace
    from spotwatch.train.parts import Held
    from spotwatch.train.s3_bucket import Bucket
    from spotwatch.train.uploader import ProcessBulk

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


def test_the_process_outlives_the_thread_that_started_it(server: S3StandIn, bulk: ProcessBulk) -> None:
    """Each save has a thread of its own; one process serves them all."""
    thread = threading.Thread(target=bulk.prepare)
    thread.start()
    thread.join()
    pid = pid_of(bulk)
    assert bulk.upload(KEY, shared(2 * PART_BYTES), nothing)
    assert pid_of(bulk) == pid


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
