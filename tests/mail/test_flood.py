# SPDX-License-Identifier: Apache-2.0
"""Under a flood of forged mail no forged one stops, no genuine one is missed, and the loop keeps its pace.

The flood of ten thousand is in tests/real.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwatch.metrics import WEBHOOK_RESULTS
from tests.mail.flooding import Outcome, flood

COUNT = 400


def check(outcome: Outcome) -> None:
    """Fail unless the flood did what it should, and no more."""
    assert outcome.genuine >= 1
    assert outcome.proven == outcome.genuine
    assert outcome.earliest is not None
    *_, last = outcome.strong
    assert last.deadline == outcome.earliest
    assert {notice.id for notice in outcome.strong} == {last.id}
    deadlines = [notice.deadline for notice in outcome.strong if notice.deadline is not None]
    assert deadlines == sorted(deadlines, reverse=True)
    for kind, status, result in outcome.verdicts:
        assert result in WEBHOOK_RESULTS, kind
        if "stranger" in kind:
            assert status == 401, kind
        elif kind == "genuine":
            assert (status, result) in {(202, "accepted"), (200, "duplicate")}
    assert outcome.lag is not None
    assert outcome.lag.is_fine, outcome.lag


@pytest.mark.hostile(57)
async def test_a_flood_of_forged_mail(tmp_path: Path) -> None:
    """Valid and invalid signatures of services, copies of genuine mails, wrong keys, huge and odd bodies."""
    check(await flood(COUNT, tmp_path, seed=7))
