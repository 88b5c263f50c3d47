# SPDX-License-Identifier: Apache-2.0
"""A window's policy, tried on the real plan: what is to be rehearsed on a cloud fits its window."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from spotwatch.drill import FLUSHING, interval_seconds, make_plan
from spotwatch.emulator import clouds
from spotwatch.errors import ConfigError
from spotwatch.model import Certainty, Kind, Notice
from spotwatch.policy import CaseView, Progress, margin, plan
from spotwatch.testing import EPOCH
from tests.config_helpers import Loader

CERTAINTIES = {
    "aws": Certainty.EXACT,
    "gcp": Certainty.ESTIMATE,
    "azure": Certainty.ESTIMATE,
    "digitalocean": Certainty.TARGET,
}


def case(cloud: str, window_seconds: float) -> CaseView:
    """Return the case of a reclaim that was announced just now."""
    deadline = EPOCH + timedelta(seconds=window_seconds)
    notice = Notice(
        id="one",
        provider=cloud,
        signal="any",
        kind=Kind.RECLAIM,
        seen_at=EPOCH,
        deadline=deadline,
        certainty=CERTAINTIES[cloud],
    )
    return CaseView(notice=notice, first_seen_at=EPOCH, deadline=deadline)


@pytest.mark.parametrize("window_seconds", [5.0, 20.0, 120.0])
@pytest.mark.parametrize("cloud", clouds())
def test_what_is_to_be_rehearsed_fits(cloud: str, window_seconds: float) -> None:
    """A flush at once and a stop in time where the cloud leaves time, else a stop at once."""
    policy = make_plan(window_seconds, [cloud]).policy
    made = plan(
        [case(cloud, window_seconds)], policy, Progress(), now=EPOCH, save_seconds=policy.save_seconds
    )
    assert made.stop is not None
    if cloud in FLUSHING:
        assert made.flush is not None
        assert made.flush.at == EPOCH
        ahead = (made.stop.at - EPOCH).total_seconds()
        assert 0.4 * window_seconds <= ahead <= 0.8 * window_seconds
    else:
        assert made.flush is None
        assert made.stop.at == EPOCH


def test_the_shortest_window_fits_also_when_two_seconds_of_it_are_lost() -> None:
    """On AWS the time is told in whole seconds and asked for every second: a flush still goes first."""
    policy = make_plan(5.0, ["aws"]).policy
    made = plan([case("aws", 3.0)], policy, Progress(), now=EPOCH, save_seconds=policy.save_seconds)
    assert made.flush is not None
    assert made.stop is not None
    assert made.stop.at > EPOCH


def test_a_target_is_flushed_again_before_its_stop() -> None:
    """On DigitalOcean the second flush, which a real window would see, is rehearsed too."""
    measures = make_plan(20.0, ["digitalocean"])
    notice = case("digitalocean", 20.0).notice
    before_stop = 20.0 - margin(notice, measures.policy, measures.policy.save_seconds)
    assert 2 * measures.policy.reflush_seconds <= before_stop


@pytest.mark.parametrize("window_seconds", [5.0, 20.0, 120.0])
def test_the_trainer_outlasts_the_window(window_seconds: float) -> None:
    """The run is long enough to be interrupted even by a stop at the very deadline."""
    made = make_plan(window_seconds, clouds())
    left = (made.total_steps - made.notice_step) * made.step_seconds
    assert left > window_seconds + 1


def test_the_variables_are_the_daemons_settings(tmp_path: Path) -> None:
    """The daemon reads exactly the policy that was planned and printed."""
    made = make_plan(20.0, ["aws"])
    assert Loader(tmp_path)(env=made.variables()).settings.policy == made.policy
    assert made.describe().startswith("window 20 s, and in proportion to it: save_seconds = 2, ")


@pytest.mark.parametrize(
    ("window_seconds", "names", "wanted"),
    [
        (1.9, ["gcp"], "1.9 s is too short to rehearse gcp; take 2 s"),
        (4.9, ["gcp", "aws"], "4.9 s is too short to rehearse aws; take 5 s"),
        (float("nan"), ["gcp"], "nan s is too short"),
        (121, ["gcp", "aws"], "more than aws gives"),
        (7201, ["digitalocean"], "more than digitalocean gives"),
    ],
)
def test_windows_that_no_cloud_gives(window_seconds: float, names: list[str], wanted: str) -> None:
    """A window that proves nothing is refused before anything starts."""
    with pytest.raises(ConfigError, match=wanted):
        make_plan(window_seconds, names)


@pytest.mark.parametrize("cloud", clouds())
def test_the_limit_of_an_order(cloud: str) -> None:
    """An order is due one interval and a second after the announcement."""
    assert make_plan(20.0, [cloud]).order_limit_seconds(cloud) == interval_seconds(cloud) + 1
