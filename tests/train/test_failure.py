# SPDX-License-Identifier: Apache-2.0
"""The first word of a failure is one that the daemon counts by."""

from __future__ import annotations

import pytest

from spotwatch.errors import CheckpointCorrupt, ConfigError, NoRoom, RankGone, StoreError, StoreSilent
from spotwatch.metrics import FAILURES
from spotwatch.train.failure import told


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConfigError("optimizer/state: cannot save a lock"), "stage: optimizer/state: cannot save a lock"),
        (NoRoom("no room"), "stage: no room"),
        (CheckpointCorrupt("part 3"), "verify: part 3"),
        (StoreSilent("nothing taken for 180 s"), "upload: nothing taken for 180 s"),
        (StoreError("403"), "store: 403"),
        (RankGone("rank 1"), "store: rank 1"),
        (RuntimeError(), "other: RuntimeError()"),
        (StoreError("x" * 900), "store: " + "x" * 493),
    ],
)
def test_failure_says_what_it_failed_at(error: Exception, said: str) -> None:
    """What failed, and then why, in the error's own words."""
    assert told(error) == said
    assert said.partition(":")[0] in FAILURES
