# SPDX-License-Identifier: Apache-2.0
"""What is read from an answer, and from the machine's DMI texts: a value or a typed failure, never a crash.

How answers are fetched is tested in `test_metadata`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwatch.errors import Malformed
from spotwatch.providers import _metadata
from spotwatch.providers._metadata import Reply, read_dmi


@pytest.mark.parametrize(
    ("date", "moment"),
    [
        ("Sun, 29 Nov 2026 16:12:43 GMT", datetime(2026, 11, 29, 16, 12, 43, tzinfo=UTC)),
        ("Sun, 29 Nov 2026 18:12:43 +0200", datetime(2026, 11, 29, 16, 12, 43, tzinfo=UTC)),
        ("Sun, 29 Nov 2026 16:12:43", None),
        ("Sun, 29 Nov 2026 16:12:43 -0000", None),
        ("Fri, 31 Dec 9999 23:59:59 -1200", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_the_servers_date(date: str, moment: datetime | None) -> None:
    """Date becomes aware UTC, or nothing at all."""
    found = Reply(status=200, headers={"date": date}, body=b"").server_at
    assert found == moment
    assert found is None or found.tzinfo is UTC


@given(st.text(max_size=60))
def test_no_date_can_crash_us(date: str) -> None:
    """Whatever the header says, the result is aware or None."""
    found = Reply(status=200, headers={"date": date}, body=b"").server_at
    assert found is None or found.tzinfo is not None


@given(st.binary(max_size=200))
def test_no_body_can_crash_us(content: bytes) -> None:
    """Reading a body as text or JSON gives a value or Malformed with that body."""
    reply = Reply(status=200, headers={}, body=content)
    for read in (reply.text, reply.json):
        caught = None
        try:
            read()
        except Malformed as error:
            caught = error
        assert caught is None or caught.body == content


def test_dmi_is_read_leniently(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A DMI text is stripped; a missing one, and one that is no UTF-8, does not raise."""
    monkeypatch.setattr(_metadata, "_DMI", tmp_path)
    (tmp_path / "sys_vendor").write_bytes(b"Amazon EC2\n")
    (tmp_path / "odd").write_bytes(b"\xff\n")
    assert read_dmi("sys_vendor") == "Amazon EC2"
    assert read_dmi("missing") == ""
    assert read_dmi("odd") == "\ufffd"
