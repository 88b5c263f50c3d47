# SPDX-License-Identifier: Apache-2.0
"""The product's proof as it is advertised: every cloud, the real trainer, a window as long as by default."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]  # four windows of twenty seconds, two at a time


def test_all_clouds_pass() -> None:
    """No step lost, 75 then 0, bit-identical, in time, on each of the four clouds."""
    done = subprocess.run(
        [sys.executable, "-m", "spotwatch", "drill", "--cloud", "all", "--json"],
        stdout=subprocess.PIPE,
        check=False,
    )
    got = json.loads(done.stdout)
    assert {cloud["cloud"]: cloud["problems"] for cloud in got["clouds"]} == {
        "aws": [],
        "gcp": [],
        "azure": [],
        "digitalocean": [],
    }
    for cloud in got["clouds"]:
        assert (cloud["steps_lost"], cloud["steps_executed_twice"]) == (0, 0)
        assert (cloud["first_exit_code"], cloud["final_exit_code"], cloud["bit_identical"]) == (75, 0, True)
        assert cloud["notice_to_order_seconds"] <= cloud["notice_to_order_limit_seconds"]
    assert (done.returncode, got["verdict"]) == (0, "pass")
