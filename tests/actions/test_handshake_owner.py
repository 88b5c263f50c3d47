# SPDX-License-Identifier: Apache-2.0
"""When a daemon that is not root gives the flag to the trainer's user."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwatch.actions.handshake import may_give_away


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("CapPrm:\t0000000000000009\nCapEff:\t0000000000000009\n", True),
        ("CapEff:\t000001ffffffffff\n", True),
        ("CapEff:\t0000000000000001\n", False),
        ("CapEff:\t0000000000000008\n", False),
        ("CapPrm:\t0000000000000009\nCapEff:\t0000000000000000\n", False),
        ("", False),
    ],
    ids=["both", "all", "chown alone", "fowner alone", "not in effect", "unknown"],
)
def test_a_file_is_given_away_only_with_both_capabilities(
    tmp_path: Path, status: str, expected: bool
) -> None:
    """With CAP_CHOWN alone the flag would be the trainer's before it is in its place, and never get there."""
    (tmp_path / "status").write_text(status)
    assert may_give_away(tmp_path / "status") is expected
    assert may_give_away(tmp_path / "missing") is False
