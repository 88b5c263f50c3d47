# SPDX-License-Identifier: Apache-2.0
"""Told to stop in the midst of a save or with all its workers, or to save once more: nothing is torn."""

from __future__ import annotations

import re
import signal

import pytest

from spotwatch.handshake import FLAG
from tests.real.failures_bucket import Place, step_of
from tests.real.failures_runs import Runs
from tests.train.s3_proxy import FINE, Call, Fault, proxy_to

pytest_plugins = ["tests.real.failures_fixtures"]
pytestmark = [pytest.mark.real, pytest.mark.timeout(60, func_only=True)]


def test_signals_at_every_part(weed_place: Place, runs: Runs) -> None:
    """The save under way is finished, not begun anew; then the last step is saved, and 75 says so."""
    sent: list[signal.Signals] = []

    def fault(call: Call) -> Fault:
        if call.is_part:
            for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
                trainer.signal(number)
                sent.append(number)
        return FINE

    with proxy_to(weed_place.server.endpoint) as proxy:
        trainer = runs.at(weed_place, "--hold-at", "3", "4", AWS_ENDPOINT_URL=proxy.url)
        trainer.wait_for("holds 3$")
        proxy.fault = fault
        runs.go_on(3)
        assert trainer.end() == 75, trainer.text
    parts = len(sent) // 3
    assert parts == 6
    assert [step_of(name) for name in weed_place.dirs()] == [4, 5]
    assert re.findall(r"step (\d+) is durable", trainer.text) == ["4", "5"]
    assert trainer.told().left == 5
    runs.expect(runs.at(weed_place), resumed=5)


def test_the_whole_group_with_workers(weed_place: Place, runs: Runs) -> None:
    """The loader's processes ignore what the trainer is told, and the batches after it are the right ones."""
    options = ("--workers", "2")
    trainer = runs.at(weed_place, *options, "--hold-at", "6")
    trainer.wait_for("holds 6$")
    workers = trainer.children(b"")
    assert len(workers) >= 2
    for _ in range(3):
        trainer.signal_group(signal.SIGTERM)
    assert trainer.end() == 75, trainer.text
    assert trainer.told().left == 7
    assert "killed by signal" not in trainer.text
    runs.expect(runs.at(weed_place, *options), resumed=7, options=options)


def test_a_flag_during_an_upload(weed_place: Place, runs: Runs) -> None:
    """The flag that is touched once more, while the save for it is on its way, gets a save of its own."""
    options = ("--total", "300", "--width", "700", "--every", "1000")
    flag = runs.runtime_dir / FLAG
    seen = 0

    def fault(call: Call) -> Fault:
        nonlocal seen
        seen += call.is_part
        if call.is_part and seen == 2:
            flag.touch()
        return FINE

    with proxy_to(weed_place.server.endpoint) as proxy:
        there = {"AWS_ENDPOINT_URL": proxy.url}
        trainer = runs.at(weed_place, *options, "--step-seconds", "0.02", "--hold-at", "1", **there)
        trainer.wait_for("holds 1$")
        proxy.fault = fault
        flag.touch()
        runs.go_on(1)
        trainer.wait(lambda: len(re.findall(r"step \d+ is durable", trainer.text)) == 2, "the second save")
        trainer.wait(lambda: not flag.exists(), "the answer")
        trainer.kill()
        first, second = map(int, re.findall(r"step (\d+) is durable", trainer.text))
        assert 1 <= first < second
        assert seen == 4
        runs.expect(runs.at(weed_place, *options, **there), resumed=second, options=options)
