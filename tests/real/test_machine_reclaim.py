# SPDX-License-Identifier: Apache-2.0
"""A cloud takes the machine back and thinks better of it: both units and torch, from notice to new start."""

from __future__ import annotations

import itertools

import pytest

from tests.real.spot_machine import DRAINING, FLAG, TORCH_TRAINER, TRAIN, SpotMachine

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

# The stop is due 21 s and one and a half saves before the end of a window of 30 s; a flush fits before it, so
# long as a save takes less than 3.6 s.
_SETTINGS = 'providers = ["auto"]\n[policy]\nsave_seconds = 1\nstop_margin_seconds = 21\n'


def test_a_reclaim_by_the_cloud(spot: SpotMachine) -> None:
    """Kept down while it lasts, started again when it is withdrawn: no step is lost, none done twice."""
    _go_down(spot)
    _refuses_to_start(spot)

    first = spot.trace()
    spot.play("aws", "--notice-after=1h")
    spot.wait(TRAIN, "active", 30)
    assert not spot.is_there(DRAINING)
    spot.wait_for(lambda: len(spot.trace()) > len(first), 60, "a trainer that goes on")
    steps, pids = zip(*spot.trace(), strict=True)
    assert list(steps) == list(range(1, len(steps) + 1))
    assert len(list(itertools.groupby(pids))) == 2
    assert spot.status()["cases"] == []


def test_a_reclaim_with_all_as_root(spot: SpotMachine) -> None:
    """Where nobody has a user of their own the same is ordered and answered."""
    _go_down(spot, is_root=True)


def _go_down(spot: SpotMachine, *, is_root: bool = False) -> None:
    """Let the daemon find the cloud, and follow its reclaim up to a trainer that has saved and stopped."""
    spot.play("aws", "--notice-after=1h")
    spot.set_up(TORCH_TRAINER, settings=_SETTINGS, is_root=is_root)
    spot.wait_for(lambda: len(spot.trace()) >= 10, 60, "a trainer that trains")
    assert [provider["name"] for provider in spot.status()["providers"]] == ["aws", "file"]

    spot.play("aws", "--notice-after=1s", "--window=30s")
    spot.wait(TRAIN, "inactive", 60)
    assert spot.machine.show(TRAIN, "Result", "ExecMainStatus") == {
        "Result": "success",
        "ExecMainStatus": "75",
    }
    spot.wait_for(lambda: bool(spot.orders()[-1]["answer"]), 10, "an answer")
    assert [(order["do"], order["answer"]) for order in spot.orders()] == [
        ("flush", "durable"),
        ("stop", "durable"),
    ]
    assert not spot.is_there(FLAG)
    assert spot.is_there(DRAINING)


def _refuses_to_start(spot: SpotMachine) -> None:
    """Neither a hand nor a timer brings the trainer back."""
    spot.machine.check("systemctl", "start", TRAIN)
    asked = spot.machine.show(TRAIN, "ConditionTimestampMonotonic")
    spot.machine.check(
        *("systemd-run", "--quiet", "--on-active=10ms", "--timer-property=AccuracySec=1ms", f"--unit={TRAIN}")
    )
    spot.wait_for(
        lambda: spot.machine.show(TRAIN, "ConditionTimestampMonotonic") != asked, 10, "the timer to try it"
    )
    assert spot.machine.show(TRAIN, "ActiveState", "ConditionResult") == {
        "ActiveState": "inactive",
        "ConditionResult": "no",
    }
