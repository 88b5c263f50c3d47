# SPDX-License-Identifier: Apache-2.0
"""A loss that is not finite: what follows it is kept aside, and nobody goes on from it."""

from __future__ import annotations

import json
import signal

import pytest

from tests.real.failures_bucket import Place
from tests.real.failures_runs import Runs

pytest_plugins = ["tests.real.failures_fixtures"]
pytestmark = [pytest.mark.real, pytest.mark.timeout(60, func_only=True)]


def test_not_finite(any_place: Place, runs: Runs) -> None:
    """Stopped after it, the run goes on from the last healthy step; the other checkpoint can be looked at."""
    trainer = runs.at(any_place, "--nan-at", "9", "--blocking", "--hold-at", "10")
    trainer.wait_for("holds 10$")
    assert trainer.told().losses[10] == "nan"
    trainer.signal(signal.SIGTERM)
    assert trainer.end() == 75, trainer.text
    assert "step 11 is kept aside, for it is not healthy" in trainer.text
    assert any_place.latest_step() == 8
    aside = any_place.dir_of(11)
    assert json.loads(any_place.get(f"{aside}/manifest.json"))["healthy"] is False
    runs.expect(runs.at(any_place), resumed=8)
    assert aside in any_place.dirs()
    assert any_place.latest_step() == 12


def test_never_finite(weed_place: Place, runs: Runs) -> None:
    """Nothing healthy was ever saved: a start is refused, unless insisted on."""
    trainer = runs.at(weed_place, "--nan-at", "1", "--blocking", "--hold-at", "6")
    trainer.wait_for("holds 6$")
    trainer.signal(signal.SIGTERM)
    assert trainer.end() == 76, trainer.text
    assert weed_place.latest_step() is None
    refused = runs.at(weed_place)
    assert refused.end() == 1, refused.text
    assert "saved as unhealthy" in refused.text
    runs.expect(runs.at(weed_place, SPOTWATCH_ALLOW_FRESH="1"), resumed=0)
