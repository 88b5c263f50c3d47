# SPDX-License-Identifier: Apache-2.0
"""Large bodies by boto3 in a process of its own: what it sends, what it survives, and when it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwatch.errors import RunTaken, StoreError
from spotwatch.train.parts import Held
from spotwatch.train.stores.pacing import Pace
from spotwatch.train.stores.s3_bucket import Bucket
from spotwatch.train.stores.uploader import ProcessBulk, environment
from tests.train.bulk_help import PART_BYTES, crcs_of, is_gone, nothing, shared
from tests.train.s3_stand_in import Call, S3StandIn, refusal

KEY = "prefix/run/step-1/rank-00000.safetensors"

# Each starts a Python that imports boto3, on a machine that others use too.
pytestmark = [pytest.mark.timeout(90), pytest.mark.usefixtures("made_up_keys")]


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


def test_a_body_arrives_bit_by_bit_and_the_process_is_used_again(
    server: S3StandIn, bulk: ProcessBulk
) -> None:
    """Two saves, the second larger: the objects, the checksums, progress, and one process."""
    bulk.prepare(10**9)
    pid = pid_of(bulk)
    for size in (5 * PART_BYTES + 7, 12 * PART_BYTES):
        body, told = shared(size, seed=size), list[int]()
        assert bulk.upload(f"{KEY}-{size}", body, told.append) == crcs_of(body)
        assert server.objects[f"{KEY}-{size}"] == bytes(body.view)
        assert told == sorted(told)
        assert told[-1] >= size
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
    bulk.prepare(10**9)
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
    bulk.prepare(10**9)
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
    bulk.prepare(10**9)
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


def test_the_process_outlives_the_thread_that_started_it(server: S3StandIn, bulk: ProcessBulk) -> None:
    """Each save has a thread of its own; one process serves them all."""
    thread = threading.Thread(target=bulk.prepare, args=(10**9,))
    thread.start()
    thread.join()
    pid = pid_of(bulk)
    assert bulk.upload(KEY, shared(2 * PART_BYTES), nothing)
    assert pid_of(bulk) == pid
