# SPDX-License-Identifier: Apache-2.0
"""How often a run's machines were lost without notice, from how its last lives ended."""

from __future__ import annotations

import pytest

from spotwatch.train.lease.history import MOST_LIVES, History, Life

HOUR = 3600.0


@pytest.mark.parametrize(
    ("lives", "prior_hours", "hours"),
    [
        ([], 4, 4),
        ([(2, "lost")], 4, 3),
        ([(2, "stopped")], 4, 6),
        ([(2, "finished"), (2, "failed")], 4, 8),
        ([(2, "lost"), (2, "lost"), (2, "lost")], 4, 2.5),
        ([(10, "stopped"), (10, "lost"), (6, "")], 4, 15),
        ([(0, "lost")] * 20, 4, 4 / 21),
        ([(24, "lost")], 0, 12),
    ],
)
def test_mean_time_between_losses(lives: list[tuple[float, str]], prior_hours: float, hours: float) -> None:
    """Only what ended without a word is a loss; all time counts, and the prior as one loss."""
    history = History(tuple(Life(seconds * HOUR, ended) for seconds, ended in lives))
    assert history.reclaim_every_seconds(prior_hours * HOUR) == pytest.approx(hours * HOUR)


def test_four_hours_until_measured() -> None:
    """A run without a past is assumed to be lost every four hours."""
    assert History().reclaim_every_seconds() == 4 * HOUR


def test_old_lives_fall_out() -> None:
    """Only the last twenty are kept, the newest among them."""
    history = History()
    for number in range(50):
        history = history.followed_by(Life(float(number), "stopped"))
    assert [life.seconds for life in history.lives] == [float(n) for n in range(50 - MOST_LIVES, 50)]
