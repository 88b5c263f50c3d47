# SPDX-License-Identifier: Apache-2.0
"""The machine goes in the middle of an upload: nothing of it counts, and the next start removes its parts."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest

from tests.real.failures_bucket import Place, complete
from tests.real.failures_runs import Runs, Trainer
from tests.real.namespace import wait_until
from tests.train.s3_proxy import FINE, Call, Fault, S3Proxy, proxy_to

pytest_plugins = ["tests.real.failures_fixtures"]
pytestmark = [pytest.mark.real, pytest.mark.timeout(60, func_only=True)]

_PARTS = 24
_LARGE = ("--width", "3185", "--total", "8")


def _kill_at(proxy: S3Proxy, trainer: Trainer, part: int) -> None:
    """Let the trainer's machine go when its `part`-th part from now on is on its way."""
    seen = 0

    def fault(call: Call) -> Fault:
        nonlocal seen
        seen += call.is_part
        if seen < part:
            return FINE
        if seen == part and call.is_part:
            trainer.signal_group(signal.SIGKILL)
        # What its uploader would still say never gets out of the machine.
        return Fault(refuse=(503, "SlowDown"))

    proxy.fault = fault


def _is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def _lose_at(part: int, place: Place, runs: Runs, uploader: str) -> None:
    with proxy_to(place.server.endpoint) as proxy:
        there = {"AWS_ENDPOINT_URL": proxy.url, "SPOTWATCH_UPLOADER": uploader}
        trainer = runs.at(place, *_LARGE, "--hold-at", "4", **there)
        trainer.wait_for("step 4 is durable")
        assert sum(call.is_part for call in proxy.calls) == _PARTS
        uploaders = trainer.children(b"uploader_process")
        assert len(uploaders) == (uploader == "boto3")
        _kill_at(proxy, trainer, part)
        runs.go_on(4)
        assert trainer.end() == -signal.SIGKILL, trainer.text
        for pid in uploaders:
            wait_until(partial(_is_gone, pid), 20, "the end of the uploader")
        assert place.latest_step() == 4
        assert len(place.uploads()) == 1
        assert {key.partition("/")[0] for key in place.names()} == {"LATEST", "LEASE", place.dir_of(4)}
        proxy.fault = lambda _: FINE
        again = runs.at(place, *_LARGE, **there)
        runs.expect(again, resumed=4, options=_LARGE)
    assert "removed the parts of 1 uploads" in again.text
    assert place.uploads() == []
    assert place.latest_step() == 8


@pytest.mark.parametrize("uploader", ["obstore", "boto3"])
@pytest.mark.parametrize("part", [1, 10, 20, _PARTS])
def test_killed_at_a_part(large_place: Place, runs: Runs, part: int, uploader: str) -> None:
    """LATEST stays, the next start goes on from it, aborts the upload and says so."""
    _lose_at(part, large_place, runs, uploader)


@pytest.mark.parametrize("any_place", ["rclone", "moto"], indirect=True)
def test_killed_in_the_middle(any_place: Place, runs: Runs) -> None:
    """Likewise on other servers."""
    _lose_at(10, any_place, runs, "obstore")


def test_killed_in_the_first_save(large_place: Place, runs: Runs) -> None:
    """A run that has saved nothing yet begins anew without being asked, and removes what there is."""
    with proxy_to(large_place.server.endpoint) as proxy:
        there = {"AWS_ENDPOINT_URL": proxy.url}
        trainer = runs.at(large_place, "--hold-at", "3", **there)
        trainer.wait_for("holds 3$")
        _kill_at(proxy, trainer, 2)
        runs.go_on(3)
        assert trainer.end() == -signal.SIGKILL, trainer.text
        assert large_place.names() == ["LEASE"]
        assert len(large_place.uploads()) == 1
        proxy.fault = lambda _: FINE
        again = runs.at(large_place, **there)
        runs.expect(again, resumed=0)
    assert "removed the parts of 1 uploads" in again.text
    assert complete(large_place.names()) == set(large_place.dirs())
