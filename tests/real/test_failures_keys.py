# SPDX-License-Identifier: Apache-2.0
"""A run with more objects than one page of a listing shows, and no LATEST to go by."""

from __future__ import annotations

import pytest

from tests.real.failures_bucket import Place
from tests.real.failures_runs import LOST_STEPS, Runs

pytest_plugins = ["tests.real.failures_fixtures"]
pytestmark = [pytest.mark.real, pytest.mark.timeout(60, func_only=True)]

_KEYS = 1_001


def test_more_keys_than_a_page(lost: Place, runs: Runs) -> None:
    """The newest checkpoint is found behind a page of others' leavings, which stay where they are."""
    strangers = {f"a/{number:04d}": b"x" for number in range(_KEYS)}
    lost.fill(strangers)
    lost.delete("LATEST")
    first_page = sorted(lost.names())[:1000]
    assert not any(key.startswith("step-") for key in first_page)
    runs.expect(runs.at(lost), resumed=LOST_STEPS[-1])
    assert lost.latest_step() == 12
    assert strangers.keys() <= set(lost.names())
