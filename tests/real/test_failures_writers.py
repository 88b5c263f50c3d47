# SPDX-License-Identifier: Apache-2.0
"""Two machines with one run: the newcomer waits, takes over, and the one that was stopped moves nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from spotwatch.handshake import Status
from tests.real.failures_bucket import Place
from tests.real.failures_runs import Runs
from tests.train.s3_proxy import FINE, Call, Fault, proxy_to

pytest_plugins = ["tests.real.failures_fixtures"]
pytestmark = [pytest.mark.real, pytest.mark.timeout(60, func_only=True)]

_SHORT_LEASE = ("--lease-seconds", "3")


def _runtime_dir(tmp_path: Path) -> str:
    path = tmp_path / "runtime-of-the-other"
    path.mkdir(mode=0o700)
    return str(path)


def test_a_newcomer_waits(any_place: Place, runs: Runs, tmp_path: Path) -> None:
    """It says that it waits and for whom; when the first one is told to stop, it goes on from that step."""
    first = runs.at(any_place, "--hold-at", "6")
    first.wait_for("step 4 is durable")
    first.wait_for("holds 6$")
    other = _runtime_dir(tmp_path)
    newcomer = runs.at(any_place, SPOTWATCH_RUNTIME_DIR=other)
    status = Path(other, "status", "run.json")
    newcomer.wait(
        lambda: status.exists() and Status.from_bytes(status.read_bytes()).phase == "waiting", "a wait"
    )
    assert f"pid {first.pid}" in Status.from_bytes(status.read_bytes()).error
    first.signal(signal.SIGTERM)
    assert first.end() == 75, first.text
    assert first.told().left == 7
    runs.expect(newcomer, resumed=7)
    assert any_place.latest_step() == 12


@pytest.mark.parametrize("during", ["a-step", "an-upload"])
def test_one_that_was_stopped(any_place: Place, runs: Runs, tmp_path: Path, during: str) -> None:
    """Silent for its lease it is replaced; woken, it writes nothing and ends with 77."""
    with proxy_to(any_place.server.endpoint) as proxy:
        holder = runs.at(any_place, *_SHORT_LEASE, "--hold-at", "4", "6", AWS_ENDPOINT_URL=proxy.url)
        holder.wait_for("step 4 is durable")
        holder.wait_for("holds 4$")
        if during == "an-upload":
            parts = 0

            def fault(call: Call) -> Fault:
                nonlocal parts
                parts += call.is_part
                if call.is_part and parts == 2:
                    holder.signal(signal.SIGSTOP)
                return FINE

            proxy.fault = fault
            holder.signal(signal.SIGTERM)  # its last save, of step 5
            holder.wait(lambda: parts >= 2, "the second part")
        else:
            runs.go_on(4)
            holder.wait_for("holds 6$")
            holder.signal(signal.SIGSTOP)
        other = _runtime_dir(tmp_path)
        newcomer = runs.at(any_place, *_SHORT_LEASE, SPOTWATCH_RUNTIME_DIR=other)
        runs.expect(newcomer, resumed=4)
        before = any_place.content()
        holder.signal(signal.SIGCONT)
        assert holder.end() == 77, holder.text
    after = any_place.content()
    if not any_place.server.is_conditional:
        # Between its look at the lease and its write nothing keeps the two apart there, and the page says so.
        del before["LEASE"], after["LEASE"]
    assert after.keys() == before.keys()
    assert after == before
    assert any_place.latest_step() == 12


@pytest.mark.parametrize("any_place", ["rclone"], indirect=True)
def test_without_conditional_writes(any_place: Place, runs: Runs) -> None:
    """The log says that machines are not kept apart by the store, and the run is saved and goes on."""
    first = runs.at(any_place, "--hold-at", "6")
    first.wait_for("step 4 is durable")
    first.kill()
    assert "enforces no conditional writes" in first.text
    runs.expect(runs.at(any_place), resumed=4)
