# SPDX-License-Identifier: Apache-2.0
"""The process that uploads for the trainer is killed in the middle, as when memory is short."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from tests.real.failures_bucket import Place
from tests.real.failures_runs import Runs, Trainer
from tests.train.s3_proxy import FINE, Call, Fault, S3Proxy, proxy_to

pytest_plugins = ["tests.real.failures_fixtures"]
pytestmark = [pytest.mark.real, pytest.mark.timeout(60, func_only=True)]

_LARGE = ("--width", "3185", "--total", "8")
_MARK = b"uploader_process"


def _kill_at_part(proxy: S3Proxy, trainer: Trainer, part: int, times: int) -> list[int]:
    """Kill the uploader, so many times, at the `part`-th part that each of them sends; return whom."""
    killed: list[int] = []
    sent: dict[str, int] = {}

    def fault(call: Call) -> Fault:
        if not call.is_part:
            return FINE
        upload = call.query["uploadId"][0]
        sent[upload] = sent.get(upload, 0) + 1
        if sent[upload] == part and len(killed) < times:
            (uploader,) = trainer.children(_MARK)
            killed.append(uploader)
            with contextlib.suppress(ProcessLookupError):
                os.kill(uploader, signal.SIGKILL)
        return FINE

    proxy.fault = fault
    return killed


def test_killed_once(large_place: Place, runs: Runs) -> None:
    """A new one sends the checkpoint again; nothing but the log tells of it."""
    with proxy_to(large_place.server.endpoint) as proxy:
        there = {"AWS_ENDPOINT_URL": proxy.url, "SPOTWATCH_UPLOADER": "boto3"}
        trainer = runs.at(large_place, *_LARGE, "--hold-at", "3", **there)
        trainer.wait_for("holds 3$")
        killed = _kill_at_part(proxy, trainer, 12, 1)
        runs.go_on(3)
        runs.expect(trainer, resumed=0, options=_LARGE)
    assert len(killed) == 1
    assert "the uploader process is gone" in trainer.text
    assert "again in" not in trainer.text
    assert large_place.latest_step() == 8


def test_killed_each_time(large_place: Place, runs: Runs) -> None:
    """That save fails and training goes on; the next one counts, and the next start removes the parts."""
    with proxy_to(large_place.server.endpoint) as proxy:
        there = {"AWS_ENDPOINT_URL": proxy.url, "SPOTWATCH_UPLOADER": "boto3"}
        trainer = runs.at(large_place, *_LARGE, "--blocking", "--hold-at", "3", "4", **there)
        trainer.wait_for("holds 3$")
        killed = _kill_at_part(proxy, trainer, 3, 2)
        runs.go_on(3)
        trainer.wait_for("step 4 is not saved, .* the uploader process has died 2 times")
        runs.go_on(4)
        runs.expect(trainer, resumed=0, options=_LARGE)
        assert len(killed) == 2
        assert large_place.latest_step() == 8
        assert len(large_place.uploads()) == 2
        again = runs.at(large_place, *_LARGE, **there)
        runs.expect(again, resumed=8, options=_LARGE)
    assert "removed the parts of 2 uploads" in again.text
    assert large_place.uploads() == []
