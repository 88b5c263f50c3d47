# SPDX-License-Identifier: Apache-2.0
"""torchrun as the unit's command: what a launcher that hides exit statuses makes of a stop and a start."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from tests.real.machine import ROOT
from tests.real.spot_machine import DRAINING, TRAIN, SpotMachine

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

_RANKS = 2
_TORCHRUN = (
    f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node={_RANKS} "
    f"{ROOT}/examples/recipes/train_ranks.py --url=/shared/run/checkpoints --total-steps=100000 "
    "--step-seconds=0.05 --every-steps=1000 --trace=/shared/run/trace"
)
# Stops at once, so that the whole is short.
_SETTINGS = 'providers = ["file"]\n[policy]\nmode = "stop-now"\n'


def test_ranks_stopped_by_the_units_own_job(spot: SpotMachine) -> None:
    """Both save the same step; the unit is shown as failed, is not started again, and resumes when it may."""
    _stop(spot)
    # torchrun says 1 for whatever it was; after a stop job systemd starts nothing again all the same.
    assert spot.state(TRAIN) == "failed"
    assert spot.machine.show(TRAIN, "Result", "ExecMainStatus", "NRestarts") == {
        "Result": "exit-code",
        "ExecMainStatus": "1",
        "NRestarts": "0",
    }
    first = len(spot.trace())
    spot.spotwatch("trigger", "clear")
    spot.wait_for(lambda: len(spot.trace()) >= first + 20, 90, "ranks that go on")
    spot.machine.check("systemctl", "stop", TRAIN)
    _is_whole(spot)


def test_ranks_told_one_by_one(spot: SpotMachine) -> None:
    """The launcher then fails by itself, and systemd would start it again; `draining` is what forbids it."""
    _stop(spot, target='leaves = "always"\n', shipped=("processes.conf",))
    spot.wait_for(lambda: spot.state(TRAIN) == "inactive", 10, "a start that is refused")
    assert spot.machine.show(TRAIN, "ConditionResult") == {"ConditionResult": "no"}


def _stop(spot: SpotMachine, *, target: str = "", shipped: tuple[str, ...] = ()) -> None:
    """Train for a second, order a stop, and wait until it is durable and the launcher has left."""
    spot.set_up(_TORCHRUN, settings=_SETTINGS, target=target, shipped=shipped)
    spot.wait_for(lambda: len(spot.trace()) >= 20, 90, "ranks that train")
    spot.spotwatch("trigger", "stop", "--deadline", "2m")
    spot.wait_for(lambda: spot.main_pid() == 0, 60, "a stop")
    spot.wait_for(lambda: bool(spot.orders()[-1]["answer"]), 10, "an answer")
    assert [(order["do"], order["answer"]) for order in spot.orders()] == [("stop", "durable")]
    assert spot.is_there(DRAINING)
    _is_whole(spot)


def _is_whole(spot: SpotMachine) -> None:
    """Check that each rank has executed each step once, up to the same last one."""
    ranks_of = Counter(step for step, _ in spot.trace())
    assert ranks_of == dict.fromkeys(range(1, max(ranks_of) + 1), _RANKS)
    assert len(set(spot.trace())) == len(spot.trace())
