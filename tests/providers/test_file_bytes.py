# SPDX-License-Identifier: Apache-2.0
"""Whatever bytes lie in `notices/`: a notice that the journal can hold, or the one documented error."""

from __future__ import annotations

import json
from datetime import UTC, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from spotwatch.errors import Malformed
from spotwatch.model import Notice
from spotwatch.providers.file import parse
from spotwatch.testing import EPOCH

_ODD = st.one_of(
    st.none(),
    st.floats(),
    st.text(),
    st.lists(st.integers()),
    st.sampled_from(["flush", "stop", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "\ud800"]),
    st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-23, minutes=-59))])).map(str),
)


@given(
    row=st.dictionaries(st.sampled_from(["do", "deadline", "why", "x"]), _ODD), noise=st.binary(max_size=40)
)
def test_whatever_is_in_a_file_there_is_one_error(row: dict[str, object], noise: bytes) -> None:
    """What is read goes into the journal and back; what cannot be read raises `Malformed` alone."""
    for body in (json.dumps(row).encode(), json.dumps({"do": "stop"} | row).encode(), noise):
        try:
            notice = parse(body, name="x", seen_at=EPOCH)
        except Malformed:
            continue
        kept = Notice.from_json(json.loads(json.dumps(notice.to_json())))
        assert (kept.id, kept.do) == (notice.id, notice.do)
