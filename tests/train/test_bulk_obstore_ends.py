# SPDX-License-Identifier: Apache-2.0
"""Large bodies by obstore in processes that end or are forked: no hang, no abort, nothing left."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
import warnings

import pytest

from spotwatch.train.stores.bulk_obstore import ObstoreBulk
from spotwatch.train.stores.pacing import Pace
from spotwatch.train.stores.s3_bucket import Bucket
from tests.train.bulk_help import PART_BYTES, nothing, shared
from tests.train.s3_stand_in import S3StandIn

pytestmark = pytest.mark.usefixtures("made_up_keys")

KEY = "prefix/run/step-1/rank-00000.safetensors"


def test_a_process_that_is_forked_leaves_it_to_boto3(server: S3StandIn) -> None:
    """In a fork obstore would wait for threads that are not there."""
    bulk = ObstoreBulk(Bucket("bulk", {"endpoint_url": server.url}), Pace(None))
    body = shared(2 * PART_BYTES)
    assert bulk.upload(KEY, body, nothing)
    # A child of a process of many threads; it uses none of what they may have locked.
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        child = os.fork()
    if child == 0:
        os._exit(
            0 if bulk.upload(KEY, body, nothing) is None and not bulk.read_into(KEY, 0, body.view) else 1
        )
    assert os.waitpid(child, 0)[1] == 0


TRAINER = """
    import sys, threading
    from spotwatch.train.stores.bulk_obstore import ObstoreBulk
    from spotwatch.train.stores.pacing import Pace
    from spotwatch.train.parts import Held
    from spotwatch.train.stores.s3_bucket import Bucket

    bulk = ObstoreBulk(Bucket("bulk", {"endpoint_url": sys.argv[1]}), Pace(None))
    body = Held(memoryview(bytearray(64 * 65_536)), 65_536)
    begun, ended = threading.Event(), threading.Event()

    def on_part(_):
        begun.set()

    def save():
        bulk.upload("key", body, on_part)
        ended.set()

    threading.Thread(target=save, daemon=True).start()
    (ended if sys.argv[2] == "whole" else begun).wait()
    raise SystemExit(75)
"""


def status_of(server: S3StandIn, until: str) -> int:
    """Run a trainer that leaves with 75 when its upload is whole, or has only begun."""
    command = [sys.executable, "-c", textwrap.dedent(TRAINER), server.url, until]
    return subprocess.run(command, check=False, timeout=30).returncode


@pytest.mark.timeout(90)
def test_a_process_that_ends_right_after_its_upload_keeps_its_exit_status(server: S3StandIn) -> None:
    """No thread of obstore's may be at work in an interpreter that is no more: that is SIGABRT, not 75."""
    assert [status_of(server, "whole") for _ in range(8)] == [75] * 8


def test_a_process_that_ends_in_the_middle_leaves_no_parts(server: S3StandIn) -> None:
    """The main thread left by an error of its own; the upload is ended in order on the way out."""
    server.fault = lambda call: time.sleep(0.2) if call.part else None
    assert status_of(server, "begun") == 75
    assert (server.objects, server.uploads) == ({}, {})
