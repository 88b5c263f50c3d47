# SPDX-License-Identifier: Apache-2.0
"""The interval between saves: the rule, its bounds, and what nonsense does to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwatch.interval import LEAST_SECONDS, MOST_SECONDS, save_interval_seconds


@pytest.mark.parametrize(
    ("stall", "reclaim_every", "expected"),
    [
        (0.0, 14_400.0, 60.0),
        (0.125, 14_400.0, 60.0),
        (0.5, 14_400.0, 120.0),
        (2.0, 14_400.0, 240.0),
        (10.2, 7_200.0, 383.25),
        (1_000.0, 14_400.0, 1_800.0),
        (-1.0, 14_400.0, 60.0),
    ],
)
def test_young(stall: float, reclaim_every: float, expected: float) -> None:
    """sqrt(2 C M), as worked out by hand, within the bounds."""
    assert save_interval_seconds(stall, reclaim_every_seconds=reclaim_every) == pytest.approx(
        expected, rel=1e-3
    )


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_dearer_save_is_never_made_more_often(one: float, other: float) -> None:
    """The interval grows with the stall and never leaves its bounds."""
    low, high = sorted((one, other))
    assert LEAST_SECONDS <= save_interval_seconds(low) <= save_interval_seconds(high) <= MOST_SECONDS


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"save_seconds": 10.0}, 60.0),
        ({"save_seconds": 100.0}, 400.0),
        ({"save_seconds": 1_000.0}, 4_000.0),
        ({"max_lost_seconds": 90.0}, 60.0),
        ({"max_lost_seconds": 30.0}, 30.0),
        ({"max_lost_seconds": 30.0, "save_seconds": 10.0, "step_seconds": 2.0}, 18.0),
        ({"max_lost_seconds": 30.0, "save_seconds": 20.0}, 20.0),
        ({"max_lost_seconds": 1.0, "save_seconds": 0.0, "step_seconds": 5.0}, 0.0),
    ],
)
def test_bounds(given: dict[str, float], expected: float) -> None:
    """Uploads take a quarter of the time at most, a loss costs what is allowed, and saves never overlap."""
    assert save_interval_seconds(0.1, **given) == pytest.approx(expected)


def test_announced_reclaims_stretch_the_interval() -> None:
    """Nine of ten announced in time: those that cost work are ten times as rare, saves 3.2 times."""
    rare = save_interval_seconds(2.0, reclaim_every_seconds=10 * 7_200.0)
    often = save_interval_seconds(2.0, reclaim_every_seconds=7_200.0)
    assert rare / often == pytest.approx(10**0.5)
