# SPDX-License-Identifier: Apache-2.0
"""A store that says "slow down", now and then or for a while: saves and restores get through all the same."""

from __future__ import annotations

import itertools
import signal

import pytest

from tests.real.failures_bucket import Place
from tests.real.failures_runs import Runs
from tests.train.s3_proxy import FINE, Call, Fault, proxy_to

pytest_plugins = ["tests.real.failures_fixtures"]
pytestmark = [pytest.mark.real, pytest.mark.timeout(60, func_only=True)]

_SLOW_DOWN = Fault(refuse=(503, "SlowDown"))


@pytest.mark.parametrize("uploader", ["obstore", "boto3"])
def test_every_third_request(weed_place: Place, runs: Runs, uploader: str) -> None:
    """Whatever is refused is asked again, while saving and while restoring."""
    counts = itertools.count(1)

    def fault(call: Call) -> Fault:
        return _SLOW_DOWN if next(counts) % 3 == 0 else FINE

    with proxy_to(weed_place.server.endpoint) as proxy:
        proxy.fault = fault
        there = {"AWS_ENDPOINT_URL": proxy.url, "SPOTWATCH_UPLOADER": uploader}
        first = runs.at(weed_place, "--hold-at", "6", **there)
        first.wait_for("step 4 is durable")
        first.wait_for("holds 6$")
        first.signal(signal.SIGTERM)
        assert first.end() == 75, first.text
        assert first.told().left == 7
        runs.expect(runs.at(weed_place, **there), resumed=7)
    assert next(counts) > 30


def test_a_whole_save(weed_place: Place, runs: Runs) -> None:
    """A save that never gets through is said to have failed; training goes on, and the next one counts."""
    with proxy_to(weed_place.server.endpoint) as proxy:
        there = {"AWS_ENDPOINT_URL": proxy.url, "SPOTWATCH_UPLOADER": "boto3"}
        trainer = runs.at(weed_place, "--tries", "2", "--blocking", "--hold-at", "4", "8", **there)
        trainer.wait_for("step 4 is durable")
        proxy.fault = lambda call: _SLOW_DOWN if call.method in ("PUT", "POST") else FINE
        runs.go_on(4)
        trainer.wait_for("step 8 is not saved")
        proxy.fault = lambda _: FINE
        runs.go_on(8)
        runs.expect(trainer, resumed=0)
    assert weed_place.latest_step() == 12
