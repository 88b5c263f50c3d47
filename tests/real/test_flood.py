# SPDX-License-Identifier: Apache-2.0
"""Ten thousand mails in random order, one in a hundred genuine: nothing is missed, and nothing grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mail.flooding import flood
from tests.mail.test_flood import check

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

COUNT = 10_000
# A leak of the mails alone, 4 KiB each and some of 150 KiB, would be more than that.
MOST_GROWN_BYTES = 48 * 1024 * 1024
MOST_KEPT_BYTES = 1024 * 1024


def largest_file_bytes(folder: Path) -> int:
    """Return the size of the largest file below `folder`."""
    return max(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def test_ten_thousand_mails(tmp_path: Path) -> None:
    """As the small flood of the suite, with memory and files that stay bounded."""
    outcome = await flood(COUNT, tmp_path, seed=11)
    check(outcome)
    assert (outcome.sent, outcome.genuine) == (COUNT, 100)
    assert outcome.grown_bytes < MOST_GROWN_BYTES
    assert largest_file_bytes(tmp_path) < MOST_KEPT_BYTES
